package main

import (
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/vfs"
)

// readCheckpoint prints the root mean square of each tensor of a checkpoint's model, from the exact fp32 weights. It
// holds one part of the model in memory at a time.
func readCheckpoint(path string, out io.Writer) error {
	saved, err := checkpoint.Open(vfs.OS{}, path)
	if err != nil {
		return err
	}
	model, err := saved.Model()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "step %d of a %s of %d parts\n", saved.Manifest.Step, model.Type, len(model.Parts))
	weights := saved.Weights(model)
	for _, t := range model.Tensors() {
		values, err := weights.Tensor(t.Name)
		if err != nil {
			return err
		}
		sum := 0.0
		for _, x := range values {
			sum += float64(x) * float64(x)
		}
		fmt.Fprintf(out, "%-48s %-10v %.4f\n", t.Name, t.Shape, math.Sqrt(sum/float64(len(values))))
	}
	return nil
}
