package model

import (
	"reflect"
	"testing"

	"github.com/millrace/millrace/tensor"
)

// TestSlabs: what a part has of neighbouring stacked tensors comes together; other tensors stay whole.
func TestSlabs(t *testing.T) {
	// Two experts of [2, 3] each in the parts 4 and 5, and a vector for each expert.
	stacked := func(field int) Tensor {
		return Tensor{Shape: tensor.Shape{2, 2, 3}, Pieces: []Piece{
			{Part: 4, Field: field, Rows: 2, Cols: 3, RowStep: 3, ColStep: 1},
			{Part: 5, Field: field, Rows: 2, Cols: 3, At: 6, RowStep: 3, ColStep: 1}}}
	}
	vectors := Tensor{Shape: tensor.Shape{2, 2}, Pieces: []Piece{
		{Part: 4, Field: 2, Rows: 2, Cols: 1, RowStep: 1, ColStep: 1},
		{Part: 5, Field: 2, Rows: 2, Cols: 1, At: 2, RowStep: 1, ColStep: 1}}}
	// Transposed, with the rows of two fields alternating.
	alternating := Tensor{Shape: tensor.Shape{2, 3, 4}}
	for part := range 2 {
		for field := range 2 {
			alternating.Pieces = append(alternating.Pieces, Piece{Part: 4 + part, Field: field, Rows: 2, Cols: 3,
				At: int64(12*part + field), RowStep: 2, ColStep: 4})
		}
	}
	one := Tensor{Shape: tensor.Shape{6}, Pieces: []Piece{{Part: 4, Rows: 6, Cols: 1, RowStep: 1, ColStep: 1}}}
	// Rows of the parts 4 and 5 in turns.
	mixed := Tensor{Shape: tensor.Shape{4, 1}, Pieces: []Piece{
		{Part: 4, Rows: 2, Cols: 1, RowStep: 2, ColStep: 1},
		{Part: 5, Rows: 2, Cols: 1, At: 1, RowStep: 2, ColStep: 1}}}
	got := Slabs([]Tensor{one, stacked(0), alternating, vectors, mixed, one, stacked(1)})
	want := []Slab{{0, 0, 6}, {1, 0, 6}, {2, 0, 12}, {3, 0, 2}, {1, 6, 6}, {2, 12, 12}, {3, 2, 2}, {4, 0, 4}, {5, 0, 6},
		{6, 0, 12}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
