package stream_test

import (
	"slices"
	"testing"
)

// Rotary tables are loaded some positions at a time, and are whole.
func TestRotaryTables(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	for _, positions := range []int{5, 4096, 4097, 9001} {
		shape := tiny
		shape.Layers, shape.SequenceLen = 1, positions
		s := shape.subject(t, 0)
		s.model.MaxPositions = positions
		r := start(t, s, setup{change: streamed(1), device: dev})
		cos, sin, err := r.engine.RotaryTables(0)
		if err != nil {
			t.Fatal(err)
		}
		wantCos, wantSin := s.model.Blocks[0].Rotary().Tables(positions, 0, positions)
		if !slices.Equal(cos, wantCos) || !slices.Equal(sin, wantSin) {
			t.Errorf("%d positions: the tables are not what they should be", positions)
		}
		r.close(t)
	}
}
