// Package tensorboard writes event files as TensorBoard reads them: scalars, texts and hyperparameters of a run.
//
// An event file is a TFRecord file. Each record is an Event, a message of protocol buffers, of which this package
// writes the few fields that it needs by hand. A run has a directory of such files, one for each start: the first
// event of interest in a file says from which step on it replaces what earlier files have, so that a run that
// continues from a checkpoint has each step once.
//
// Sources: TensorBoard 2.21, tensorboard/compat/proto (event.proto, summary.proto, tensor.proto) and
// tensorboard/plugins/hparams/plugin_data.proto; TFRecord: tensorflow/core/lib/io/record_writer.h.
package tensorboard
