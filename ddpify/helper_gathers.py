"""The helpers that deal out an evaluation, and put together what each process has of it: lists and arrays."""

from __future__ import annotations


def rows(options: frozenset[str]) -> str:
    """`gather_rows`, of an "array" of numpy, a "tensor" from the start, or one of the "cpu" that begins as None."""
    if options == {"array"}:
        sent, back = "rows", "whole.numpy()"
    elif options == {"tensor"}:
        sent, back = "rows.cpu()", "whole.to(rows.device)"
    elif options == {"cpu"}:
        sent, back = "rows", "whole"
    else:
        sent = "rows.cpu() if <torch>.is_tensor(rows) else rows"
        back = "whole.to(rows.device) if <torch>.is_tensor(rows) else whole"
    kind = "    if not <torch>.is_tensor(parts[0][1]):\n        return whole.numpy()\n" if len(options) > 1 else ""
    return (
        "def <gather_rows>(rows, batches):\n"
        '    """The rows of all processes in the order of the dataset: as many for each index in their batches."""\n'
        "    indices = [index for batch in batches for index in batch]\n"
        "    parts = [None] * <dist>.get_world_size()\n"
        f"    <dist>.all_gather_object(parts, (indices, {sent}))\n"
        "    parts = [part for part in parts if part[0]]\n"
        "    if not parts:\n"
        "        return rows\n"
        "    order = <torch>.tensor([index for indices, _ in parts for index in indices]).argsort(stable=True)\n"
        "    whole = <torch>.cat([<torch>.as_tensor(part) for _, part in parts])\n"
        "    whole = whole.reshape(len(order), -1)[order].reshape(whole.shape)\n"
        f"{kind}"
        f"    return {back}\n"
    )


TEXTS = {
    "batches_of_rank": '''
def <batches_of_rank>(loader):
    """A loader of this process's batches: every batch stays as it was, and one process reads it."""
    batches = [list(loader.batch_sampler)]
    <dist>.broadcast_object_list(batches, src=0)
    return <torch>.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=batches[0][<dist>.get_rank()::<dist>.get_world_size()],
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
    )
''',
    "merge_rows": '''
def <merge_rows>(rows):
    """Fill in the rows that other processes have written; all rows began as zeros."""
    rows = rows.detach()
    parts = [<torch>.empty_like(rows) for _ in range(<dist>.get_world_size())]
    <dist>.all_gather(parts, rows)
    for part in parts:
        written = part.reshape(len(part), -1).any(dim=1)
        rows[written] = part[written]
''',
    "gather_list": '''
def <gather_list>(values):
    """The entries of all processes' lists, in one list."""
    parts = [None] * <dist>.get_world_size()
    <dist>.all_gather_object(parts, values)
    return [value for part in parts for value in part]
''',
    "gather_in_order": '''
def <gather_in_order>(values):
    """The entries of all processes' lists, in the order in which one process has them."""
    parts = [None] * <dist>.get_world_size()
    <dist>.all_gather_object(parts, values)
    merged = [None] * sum(map(len, parts))
    for rank, part in enumerate(parts):
        merged[rank::len(parts)] = part
    return merged
''',
    "gather_by_index": '''
def <gather_by_index>(values, batches):
    """The entries of all processes' lists in the order of the dataset: one for each index in a process's batches."""
    indices = [index for batch in batches for index in batch]
    parts = [None] * <dist>.get_world_size()
    <dist>.all_gather_object(parts, list(zip(indices, values)))
    return [value for _, value in sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])]
''',
}
