// Program library shows the six uses of Millrace as a Go library: plan a shape, train with a callback for each step,
// write a research loop and an optimizer of your own, read a checkpoint, and compute on a device with a driver of its own (package plain). There is
// one file for each use.
//
// It is a module of its own with a foreign name, so it can use what any other program can, and nothing else. It trains
// a tiny model (run.yaml):
//
//	cd examples/library && go run .
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/millrace/millrace"
)

func main() {
	dir, err := os.MkdirTemp("", "millrace-library-")
	if err == nil {
		err = run(context.Background(), dir, os.Stdout)
		os.RemoveAll(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "library:", err)
		os.Exit(1)
	}
}

// run goes through the six uses.
func run(ctx context.Context, dir string, out io.Writer) error {
	fmt.Fprintln(out, "1. plan a shape for a machine")
	if err := planShape(ctx, "qwen2.5-14b", "rtx3090-pc-24gb-64gb", out); err != nil {
		return err
	}

	fmt.Fprintln(out, "\n2. train, with a callback for each step")
	config, err := millrace.Config("run.yaml", "output_dir="+filepath.Join(dir, "trained"))
	if err != nil {
		return err
	}
	if _, err := trainUntil(ctx, config, 5, out); err != nil {
		return err
	}

	fmt.Fprintln(out, "\n3. a research loop")
	checkpoint, err := research(ctx, config, filepath.Join(dir, "saved"), out)
	if err != nil {
		return err
	}

	fmt.Fprintln(out, "\n4. an optimizer of your own, on a model without a directory")
	if _, _, err := signDescent(ctx, config, out); err != nil {
		return err
	}

	fmt.Fprintln(out, "\n5. read a checkpoint")
	if err := readCheckpoint(checkpoint, out); err != nil {
		return err
	}

	fmt.Fprintln(out, "\n6. a device driver of your own")
	if config, err = millrace.Config("run.yaml", "max_steps=2", "output_dir="+filepath.Join(dir, "plain")); err != nil {
		return err
	}
	_, err = trainOnPlainDevice(ctx, config, out)
	return err
}
