"""Loaders that draw by a sampler, a batch sampler or a stream of the script in, the edits that deal it out, out."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Append, DropArguments, Edit, InsertAfter, InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.phases import training_key
from ddpify.facts.samplers import Draws, Plain
from ddpify.facts.sharding import LoaderFacts
from ddpify.facts.values import Instance
from ddpify.source import Source


def dealt_out(facts: Facts, known: LoaderFacts) -> tuple[str, str, list[Edit]]:
    """What is said of it, why, and the edits."""
    if known.plain is not None:
        kind = "RandomSampler" if known.plain.shuffles else "SequentialSampler"
        return (
            f"a DistributedSampler takes the place of the {kind}",
            "each rank gets its own shard; " + ("shuffled as before" if known.plain.shuffles else "the order stays"),
            _replaced(facts, known.plain, known.drop_last is True),
        )
    assert known.draws is not None
    what = {"sampler": "samples", "batch_sampler": "batches", "dataset": "items"}[known.draws.how]
    code = known.source.code(known.draws.node).split("\n")[0]
    reason = (
        "every rank reads the whole stream and keeps its own items"
        if known.draws.how == "dataset"
        else f"rank 0 draws for all ranks, and each gets its own {what}"
        + (", batch by batch" if _together(facts, known, known.draws) else "")
    )
    return f"the {what} of `{code}` are dealt out to the ranks", reason, _wrapped(facts, known, known.draws)


def _replaced(facts: Facts, plain: Plain, drops: bool) -> list[Edit]:
    """`RandomSampler(data)` becomes `DistributedSampler(data)`."""
    source = plain.source
    options = ("" if plain.shuffles else ", shuffle=False") + (", drop_last=True" if drops else "")
    text = f"{facts.names_of(source)['DistributedSampler']}({source.code(plain.data)}{options})"
    return [Replace(source, plain.call, text), AddImport(source, "DistributedSampler")]


def _wrapped(facts: Facts, known: LoaderFacts, draws: Draws) -> list[Edit]:
    """`sampler=ShardedSampler(sampler)`; where one call makes the evaluation's loader, too, in training only."""
    source = known.source
    helper = _helper(draws)
    drop = draws.how == "sampler" and not draws.endless and known.drop_last is not False
    options = ""
    if drop:
        options = f", drop_last={said_drop_last(known)}"
    together = _together(facts, known, draws)
    options += together
    name, code = facts.names_of(source)[helper], source.code(draws.node)
    edits: list[Edit] = []
    inner = code
    if draws.optional and known.dataset is None:
        inner, more = _chosen_before(facts, known, code)
        edits += more
    elif draws.optional:
        inner, more = _or_default(facts, known, code)
        edits += more
    text = f"{name}({inner}{options})"
    key = training_key(facts, known.call)
    if key is not None:
        text = f"{text} if {key[0]} else {code}"
    wanted = frozenset(o for o, on in (("drop", drop), ("batches", together)) if on)
    edits += [Replace(source, draws.node, text), AddHelper(source, helper, wanted)]
    edits.extend(_inner_reads(facts, known, draws))
    return edits


def _together(facts: Facts, known: LoaderFacts, draws: Draws) -> str:
    """A sampler of the script's own may put samples side by side that have to meet in one batch (pairs, classes)."""
    own = any(isinstance(o, Instance) for o in known.loader.arguments.get("sampler", ()))
    size = known.batch_size
    if draws.how != "sampler" or draws.endless or not own or size is None or facts.global_batch == "keep":
        return ""
    return f", batch_size={known.source.code(size)}"


def _helper(draws: Draws) -> str:
    if draws.how == "dataset":
        return "ShardedStream"
    return "EndlessShardedSampler" if draws.endless else "ShardedSampler"


def said_drop_last(known: LoaderFacts) -> str:
    """The `drop_last` of the loader, for its sampler."""
    argument = next(
        (a.value for a in known.call.args if a.keyword is not None and a.keyword.value == "drop_last"), None
    )
    return known.source.code(argument) if argument is not None and known.drop_last is None else "True"


def from_splat(known: LoaderFacts, splat: cst.BaseExpression) -> tuple[str, list[Edit]]:
    """`DataLoader(data, **cfg)`: what the sampler takes of a dict, and the edits that leave the rest to the loader."""
    code = known.source.code(splat)
    func = known.loader.site.frame.home.func
    own = func.node.params.star_kwarg if func is not None else None
    known_dict = known.loader.splat is not None and not known.loader.unknown_splat and known.dataset is not None
    if known_dict or (own is not None and own.name.value == code):
        drop = "" if known_dict else f', drop_last={code}.get("drop_last", False)'
        return f', shuffle={code}.pop("shuffle", False){drop}', []
    options = f', shuffle={code}.get("shuffle", False), drop_last={code}.get("drop_last", False)'
    return options, [Replace(known.source, splat, f'{{**{code}, "shuffle": False}}')]


def _or_default(facts: Facts, known: LoaderFacts, code: str) -> tuple[str, list[Edit]]:
    """A sampler that may be None: the loader's own order takes its place, by the `shuffle` that it was given."""
    source = known.source
    random, plain = _of_its_own(facts, known)
    edits: list[Edit] = [AddImport(source, "torch")]
    shuffle = known.shuffle
    other = plain
    if shuffle is not None:
        said = source.code(shuffle)
        asks = said.strip("()") in (f"{code} is None", f"not {code}")
        other = random if asks or known.shuffles is True or said == "True" else plain
        if said not in ("True", "False") and not asks:
            other = f"({random} if {said} else {plain})"
        if known.position is not None:
            edits.append(Replace(source, shuffle, "False"))
        else:
            at = next(i for i, a in enumerate(known.call.args) if a.value is shuffle)
            edits.append(DropArguments(source, known.call, (at,)))
    return f"{code} if {code} is not None else {other}", edits


def _chosen_before(facts: Facts, known: LoaderFacts, code: str) -> tuple[str, list[Edit]]:
    """`DataLoader(sampler=sampler, **options)`, of a sampler that may be None: what it draws by then is made before."""
    source, draw = known.source, facts.names_of(known.source).fresh("base_sampler")
    random, plain = _of_its_own(facts, known)
    assert known.splat is not None
    held, edits, lines = source.code(known.splat), list[Edit](), [f"{draw} = {code}"]
    if known.splat_shuffles:
        said = f'{held}.get("shuffle")' if known.loader.unknown_splat else f'{held}["shuffle"]'
        lines += [f"if {draw} is None and {said}:", f"    {draw} = {random}", f"elif {draw} is None:"]
        edits.append(Replace(source, known.splat, f'{{**{held}, "shuffle": False}}'))
    else:
        lines.append(f"if {draw} is None:")
    lines.append(f"    {draw} = {plain}")
    return draw, [AddImport(source, "torch"), InsertBefore(source, known.stmt, tuple(lines)), *edits]


def _of_its_own(facts: Facts, known: LoaderFacts) -> tuple[str, str]:
    """What a loader without a sampler draws by, where it shuffles and where it does not."""
    data = f"{facts.names_of(known.source)['torch']}.utils.data"
    return f"{data}.RandomSampler({known.data})", f"{data}.SequentialSampler({known.data})"


def _inner_reads(facts: Facts, known: LoaderFacts, draws: Draws) -> Iterator[Edit]:
    """`loader.sampler.weights`: what the script asks its own sampler, or stream, lies one step deeper now."""
    part = "stream" if draws.how == "dataset" else "sampler"
    for source, node in reads_of(facts, known, draws.how):
        yield Append(source, node, f".{part}")


def check_steps(facts: Facts, known: LoaderFacts) -> list[Edit]:
    """drop_last may leave a rank without a single batch: then the script says so instead of training nothing."""
    if not isinstance(known.stmt, cst.Assign) or known.stmt.value is not known.call:
        return []
    target = known.source.code(known.stmt.targets[0].target)
    key = training_key(facts, known.call)  # an evaluation of which nothing is left prints what it printed before
    test = f"len({target}) == 0"
    if key is not None:
        test = f"({key[0]}) and {test}" if " or " in key[0] else f"{key[0]} and {test}"
    unit = "    "
    text = 'raise ValueError("fewer samples per process than one batch: no training step would be made")'
    return [InsertAfter(known.source, known.stmt, (f"if {test}:\n{unit}{text}",))]


def reads_of(facts: Facts, known: LoaderFacts, name: str) -> Iterator[tuple[Source, cst.Attribute]]:
    """`loader.sampler`, wherever the project reads it; not what a subclass keeps there before the loader is made."""
    made, home = known.source.span(known.call).end, known.loader.site.frame.home.node
    inside = isinstance(home, cst.FunctionDef)
    for source in facts.project.files():
        for node in source.of(cst.Attribute) if facts.editable(source) else ():
            if node.attr.value != name:
                continue
            before = inside and source is known.source and source.span(node).start < made
            if before and home in source.ancestors(node):
                continue
            if known.loader in facts.flow.values.get(node.value, ()):
                yield source, node
