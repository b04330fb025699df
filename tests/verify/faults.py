"""All faults: those with numbers from 18 on are here. What no run on a CPU can tell is listed, too."""

from __future__ import annotations

from tests.verify.fault import (
    DATA,
    DESTROY,
    DOWNLOAD,
    EARLY,
    FORWARD,
    FREEZE,
    HOOKED,
    LABELS,
    LOADER,
    LOOP,
    MAIN,
    NET,
    NOISY,
    PRINT,
    READ,
    SAVE,
    SEEDED,
    SET_EPOCH,
    STREAM,
    STREAMED,
    UNFREEZE,
    WORDS,
    Fault,
)
from tests.verify.first_faults import FIRST

FAULTS = (
    *FIRST,
    Fault(
        18,
        "rank-local-batch-count",
        "steps of the ranks pair up wrongly, the end hangs",
        {FORWARD: "            if y[0] == 0:\n                continue\n" + FORWARD},
        {FORWARD: "            if all_reduce_sum(y[0] == 0) > 0:\n                continue\n" + FORWARD},
        shows=("same_step_count", "ends_in_time"),
    ),
    Fault(
        19,
        "stream-not-shared",
        "every rank reads all of the stream",
        {MAIN: STREAM.format("len(self.data)") + MAIN, **STREAMED},
        {MAIN: STREAM.format("dist.get_rank(), len(self.data), dist.get_world_size()") + MAIN, **STREAMED},
        shows=("data_differs",),
    ),
    Fault(
        19,
        "weighted-sampler-not-shared",
        "every rank draws the same samples",
        {
            LOADER: "    weights = torch.utils.data.WeightedRandomSampler(torch.ones(30), 30)\n"
            "    loader = DataLoader(train_set, batch_size=4, sampler=weights)\n",
            SET_EPOCH: "",
            SEEDED: "",
        },
        shows=("disjoint_shards",),
    ),
    Fault(
        20,
        "unfrozen-after-wrap",
        "the unfrozen part is not averaged",
        {NET: NET + FREEZE, SET_EPOCH: UNFREEZE + SET_EPOCH, "SGD(model": "SGD(net"},
        {
            NET: NET + FREEZE,
            SET_EPOCH: UNFREEZE + "            model = DDP(net)\n" + SET_EPOCH,
            "SGD(model": "SGD(net",
        },
        shows=("parameters_equal",),
    ),
    Fault(
        20,
        "moved-after-wrap",
        "gradients are no longer averaged",
        {LOOP: "    model.double()\n" + LOOP, "torch.randn(39, 6)": "torch.randn(39, 6).double()"},
        {NET: NET + "    net.double()\n", "torch.randn(39, 6)": "torch.randn(39, 6).double()"},
        shows=("parameters_equal",),
    ),
    Fault(
        22,
        "download-on-every-rank",
        "two processes write one file",
        {DATA: DOWNLOAD.format("", "") + DATA},
        {DATA: "    if is_main_process():\n    " + DOWNLOAD.format("", "    ") + "    dist.barrier()\n" + DATA},
        shows=("written_by_one_rank",),
    ),
    Fault(
        24,
        "unordered-source",
        "class numbers differ from rank to rank",
        {DATA: LABELS.format(WORDS) + DATA},
        {DATA: LABELS.format(f"sorted({WORDS})") + DATA},
        shows=("same_names",),
        hash_seeds=True,
    ),
    Fault(
        25,
        "same-seed-on-all-ranks",
        "every rank drops the same units",
        {**NOISY, SEEDED: ""},
        NOISY,
        shows=("noise_differs",),
    ),
    Fault(
        28,
        "reentrant-checkpoint",
        "a parameter is marked ready twice",
        {
            "self.body(x)": "torch.utils.checkpoint.checkpoint(self.body, x.requires_grad_(), use_reentrant=True)",
            " else None)": " else None, find_unused_parameters=True)",
        },
        {
            "self.body(x)": "torch.utils.checkpoint.checkpoint(self.body, x.requires_grad_(), use_reentrant=False)",
            " else None)": " else None, find_unused_parameters=True)",
        },
        shows=("ends_in_time",),
    ),
    Fault(
        29,
        "unused-parameters",
        "the first step is local, the second raises",
        {"        self.head =": "        self.spare = nn.Linear(6, 8)\n        self.head ="},
        {
            "        self.head =": "        self.spare = nn.Linear(6, 8)\n        self.head =",
            " else None)": " else None, find_unused_parameters=True)",
        },
        shows=("ends_in_time",),
    ),
    Fault(
        31,
        "output-on-every-rank",
        "each line comes twice",
        {PRINT: PRINT.replace("if is_main_process()", "if True")},
        shows=("printed_once",),
    ),
    Fault(
        32,
        "run-folder-per-rank",
        "files are scattered over folders",
        {
            SAVE: '    os.makedirs(f"run-{os.getpid()}")\n    with open(f"run-{os.getpid()}/done.txt", "w") as file:\n'
            '        file.write("done")\n' + SAVE
        },
        {
            SAVE: "    if is_main_process():\n"
            '        os.makedirs(f"run-{os.getpid()}")\n'
            '        with open(f"run-{os.getpid()}/done.txt", "w") as file:\n'
            '            file.write("done")\n' + SAVE
        },
        shows=("written_by_one_rank",),
    ),
    Fault(
        33,
        "read-before-write-finished",
        "no file, or half of one",
        {SAVE: SAVE + READ},
        {SAVE: SAVE + "    dist.barrier()\n" + READ},
        shows=("ends_in_time",),
    ),
    Fault(34, "no-clean-shutdown", "nccl warns, or hangs at exit", {DESTROY: ""}, shows=("group_destroyed",)),
    Fault(
        35,
        "local-rank-as-main-process",
        "each machine writes and prints",
        {'get("RANK", 0)) == 0': 'get("LOCAL_RANK", 0)) == 0'},
        shows=("written_by_one_rank", "printed_once"),
        env={"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    ),
    Fault(
        35,
        "device-of-global-rank",
        "no such GPU on the second machine",
        {'get("LOCAL_RANK", 0))\n    if torch': 'get("RANK", 0))\n    if torch'},
        shows=("device_bound",),
        env={"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        pretend=True,
    ),
    Fault(
        36,
        "launcher-environment-overwritten",
        "the ranks wait for a store that nobody serves",
        {MAIN: MAIN + '    os.environ["MASTER_PORT"] = "1"\n'},
        shows=("ends_in_time",),
        env={"TORCHELASTIC_USE_AGENT_STORE": "True"},  # as torchrun says where it serves the store itself
        env_of_twin={},
    ),
    Fault(
        38,
        "copy-of-the-wrapper",
        "keys begin with module.",
        {
            SAVE: SAVE.replace("model.module.state", "copy.deepcopy(model).state"),
            "import os\n": "import copy\nimport os\n",
        },
        {SAVE: SAVE.replace("model.module", "copy.deepcopy(model.module)"), "import os\n": "import copy\nimport os\n"},
        shows=("no_module_keys",),
    ),
    Fault(
        39,
        "gradient-taken-before-reduction",
        "each rank steps on gradients of its own",
        {MAIN: EARLY + MAIN, LOOP: HOOKED + LOOP, "lr=0.1": "lr=0.0"},
        shows=("parameters_equal",),
    ),
    Fault(
        40,
        "dataparallel-remnant",
        "keys begin with module.",
        {"DDP(net,": "DDP(nn.DataParallel(net),"},
        shows=("no_module_keys",),
    ),
)

#: what no run on a CPU without the original can tell, and why
ELSEWHERE = {
    "21 load-without-map-location": "needs GPUs: where tensors are loaded to",
    "23 loss-normalised-per-rank": "the ranks agree; not as the original: the gradient",
    "26 scheduler-length-not-sharded": "the ranks agree; not as the original: the schedule",
    "27 batch-size-meaning": "the ranks agree; not as the original: the global batch",
    "30 two-forwards-with-buffers": "needs GPUs: the error is CUDA's",
    "37 batchnorm-not-synced": "no fault: statistics per rank are DDP's way",
}
