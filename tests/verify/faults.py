"""All faults: those with numbers from 31 on are here. What no run on a CPU can tell is listed, too."""

from __future__ import annotations

from tests.verify.fault import (
    ARGUMENT,
    BACKWARD,
    DESTROY,
    EARLY,
    GRADIENTS,
    HOOKED,
    LOOP,
    MAIN,
    PRINT,
    READ,
    SAVE,
    Fault,
)
from tests.verify.first_faults import FIRST
from tests.verify.second_faults import SECOND

FAULTS = (
    *FIRST,
    *SECOND,
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
        "text-compared-with-a-number",
        "no rank is the main process: nothing is printed or saved",
        {'return int(os.environ.get("RANK", 0)) == 0': 'return os.environ.get("RANK", "0") == 0'},
        shows=("same_numbers",),
        original={},
    ),
    Fault(
        35,
        "local-rank-as-argument",
        "torchrun gives none, and every rank is the main process",
        {
            '    return int(os.environ.get("RANK", 0)) == 0\n': ARGUMENT.format("-1"),
            "import os\n": "import argparse\nimport os\n",
        },
        {
            '    return int(os.environ.get("RANK", 0)) == 0\n': ARGUMENT.format('int(os.environ["LOCAL_RANK"])'),
            "import os\n": "import argparse\nimport os\n",
        },
        shows=("written_by_one_rank", "printed_once"),
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
        39,
        "gradient-of-parameters",
        "autograd.grad averages nothing",
        {BACKWARD: GRADIENTS},
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
    "27 batch-size-meaning": "no fault: it is per process, and the report says so",
    "30 two-forwards-with-buffers": "needs GPUs: the error is CUDA's",
    "37 batchnorm-not-synced": "no fault: statistics per rank are DDP's way",
}
