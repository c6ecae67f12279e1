"""Prints what TensorBoard itself finds in a directory of event files, as JSON: scalars, texts and hyperparameters.

    pip install tensorboard==2.21.0
    python trace/tensorboard/tensorboardtest/read.py runs/a/tensorboard

`go test ./trace/tensorboard -run TestTensorBoardReads` runs it where $MILLRACE_TENSORBOARD_PYTHON names a Python with
that package.
"""

import json
import sys

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util


def value(v):
    """A google.protobuf.Value."""
    return getattr(v, v.WhichOneof("kind"))


# The first one keeps scalars as they are. The second one is what the pages of TensorBoard show.
events = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
shown = plugin_event_accumulator.EventAccumulator(sys.argv[1], size_guidance={"tensors": 0})
events.Reload()
shown.Reload()
found = {"scalars": {}, "texts": {}, "settings": {}, "status": 0}
for tag in events.Tags()["scalars"]:
    found["scalars"][tag] = [[e.step, e.wall_time, e.value] for e in events.Scalars(tag)]
    values = [[e.step, tensor_util.make_ndarray(e.tensor_proto).item()] for e in shown.Tensors(tag)]
    assert values == [[step, value] for step, _, value in found["scalars"][tag]], tag
for tag, metadata in shown.summary_metadata.items():
    plugin = metadata.plugin_data
    if plugin.plugin_name == "text":
        found["texts"][tag] = {
            e.step: tensor_util.make_ndarray(e.tensor_proto).item().decode() for e in shown.Tensors(tag)
        }
    elif plugin.plugin_name == "hparams":
        data = plugin_data_pb2.HParamsPluginData.FromString(plugin.content)
        for name, v in data.session_start_info.hparams.items():
            found["settings"][name] = value(v)
        found["status"] = data.session_end_info.status or found["status"]
json.dump(found, sys.stdout)
