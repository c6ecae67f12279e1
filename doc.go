// Package millrace trains language models that do not fit on the device that computes: the weights of each layer come
// to the device, all micro-batches of a step use them, and gradients go back. Programs that use Millrace as a library
// begin with this package. The program of the same name is cmd/millrace.
//
// Plan a published shape for a named machine. It reads no file:
//
//	planned, err := millrace.PlanShape(ctx, "qwen2.5-14b", "rtx3090-pc-24gb-64gb")
//	if err != nil {
//		return err // it does not fit, and the error names the number to change
//	}
//	fmt.Print(planned)
//
// Train as a run file says, with a callback for each step:
//
//	config, err := millrace.Config("run.yaml", "max_steps=100")
//	if err != nil {
//		return err
//	}
//	summary, err := millrace.Train(ctx, config, millrace.TrainOptions{OnStep: watch})
//
// Write the loop yourself, with a [train.Run]:
//
//	run, err := millrace.Open(ctx, config, millrace.OpenOptions{})
//	batch, err := run.Next(ctx)
//	result, err := run.Step(ctx, batch, run.Update(1e-5)) // or Eval, Logits, Tensor
//	path, err := run.Save(ctx, "checkpoints")
//	err = run.Close()
//
// Read the weights of a checkpoint:
//
//	saved, err := checkpoint.Open(vfs.OS{}, path)
//	model, err := saved.Model()
//	values, err := saved.Weights(model).Tensor("model.norm.weight")
//
// Compute on a device with a driver of your own, which implements device.Device and passes device/devicetest:
//
//	env := millrace.NewEnv(os.Stderr)
//	env.Open = func(string, *hostmem.Accounts) (computes, host device.Device, err error) { ... }
//	summary, err := millrace.Train(ctx, config, millrace.TrainOptions{Env: env})
//
// The directory examples/library is a module with a program that does all five; docs/library.md explains it.
//
// # Packages
//
// Runs and what they leave:
//
//   - [github.com/millrace/millrace/runfile]: the configuration of a run, which is run.yaml.
//   - [github.com/millrace/millrace/train]: the training loop, the loop that a caller writes, the verbs of the program.
//   - [github.com/millrace/millrace/plan]: plans, with the place of all state, the schedule and the time of a step.
//   - [github.com/millrace/millrace/checkpoint]: checkpoints, to read and to write.
//   - [github.com/millrace/millrace/bench]: measurements of steps.
//   - [github.com/millrace/millrace/probe]: measurements of machines.
//   - [github.com/millrace/millrace/report]: curves of runs.
//   - [github.com/millrace/millrace/timeline]: pictures of steps.
//   - [github.com/millrace/millrace/runfile/convert]: run files from the files of other trainers.
//   - [github.com/millrace/millrace/demo]: a small run for people to watch.
//
// Models and data:
//
//   - [github.com/millrace/millrace/model]: decoders, made from a config.json, and their tensors.
//   - [github.com/millrace/millrace/hf]: directories of Hugging Face and GGUF files; hf/hub downloads and pushes them.
//   - [github.com/millrace/millrace/data]: documents, as tokens that are packed into micro-batches; data/tokenizer,
//     data/template and data/parquet read the formats.
//   - [github.com/millrace/millrace/batch]: a micro-batch.
//   - [github.com/millrace/millrace/nn]: the mathematics of layers.
//   - [github.com/millrace/millrace/optim]: the mathematics of updates.
//
// The engine:
//
//   - [github.com/millrace/millrace/stream]: the engine, which runs steps, evaluations, logits and saves.
//   - [github.com/millrace/millrace/store]: the state, in host memory and on disk.
//   - [github.com/millrace/millrace/device]: the contract of drivers. device/cpu, device/cuda and device/null
//     keep it, and device/devicetest tests it.
//   - [github.com/millrace/millrace/hostmem]: memory outside of the Go heap, counted by purpose.
//   - [github.com/millrace/millrace/vfs]: the file system of a run, which tests can make fail.
//   - [github.com/millrace/millrace/tensor]: number formats and layouts.
//   - [github.com/millrace/millrace/trace]: metrics and traces.
//
// Packages below internal are for Millrace alone, and no public package mentions their types.
//
// # Promises
//
// Errors are one line that says what failed, why, and what to change. Those that the request caused match
// [train.ErrRequest]. Until version 1, names may change with a line in CHANGELOG.md.
package millrace
