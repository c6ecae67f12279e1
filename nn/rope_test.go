package nn_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// TestRope compares with LlamaRotaryEmbedding of transformers 4.57.3 on PyTorch 2.9.0: the frequencies, and the cosines
// and sines at position 513; proportional ones with Gemma4TextRotaryEmbedding of transformers 5.24.0.
func TestRope(t *testing.T) {
	for _, c := range []struct {
		name          string
		f             nn.RopeFrequencies
		inv, cos, sin []float32
	}{
		{"default", nn.RopeFrequencies{HeadDim: 22, Theta: 10000},
			[]float32{1.0, 0.4328761398792267, 0.18738172948360443, 0.08111307770013809, 0.035111911594867706, 0.01519910991191864, 0.006579331122338772, 0.0028480361215770245, 0.0012328465236350894, 0.0005336699541658163, 0.00023101292026694864},
			[]float32{-0.6055038571357727, -0.5506795644760132, -0.30338919162750244, -0.7176995873451233, 0.669586181640625, 0.05680757761001587, -0.9728384017944336, 0.10953358560800552, 0.8065814971923828, 0.9627577662467957, 0.9929859638214111},
			[]float32{-0.7958423495292664, 0.8347167372703552, 0.9528667330741882, -0.6963528990745544, -0.7427343726158142, 0.9983851313591003, -0.23148539662361145, 0.9939830899238586, 0.5911228656768799, 0.27036553621292114, 0.11823242157697678}},
		{"linear", nn.RopeFrequencies{HeadDim: 12, Theta: 10000, Kind: nn.RopeLinear, Factor: 2.5},
			[]float32{0.4000000059604645, 0.08617737889289856, 0.018566353246569633, 0.003999999724328518, 0.0008617737330496311, 0.00018566357903182507},
			[]float32{-0.5432655811309814, 0.9744136929512024, -0.9950279593467712, -0.4628463387489319, 0.9038594961166382, 0.9954676032066345},
			[]float32{-0.8395609259605408, 0.22476188838481903, -0.09959564357995987, 0.8864385485649109, 0.427829384803772, 0.09510147571563721}},
		{"llama3", nn.RopeFrequencies{HeadDim: 32, Theta: 500000, Kind: nn.RopeLlama3, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 8192},
			[]float32{1.0, 0.44036662578582764, 0.193922758102417, 0.08539710193872452, 0.03760603070259094, 0.016560440883040428, 0.00729266507551074, 0.0032114461064338684, 0.0005248460220173001, 7.784655463183299e-05, 3.428102354519069e-05, 1.5096217794052791e-05, 6.647869668086059e-06, 2.927499735960737e-06, 1.289173155782919e-06, 5.677088097399974e-07},
			[]float32{-0.6055038571357727, 0.959213376045227, 0.49879464507102966, 0.9849718809127808, 0.9037537574768066, -0.5984176397323608, -0.8255926370620728, -0.07660046964883804, 0.963971734046936, 0.9992026686668396, 0.9998453855514526, 0.999970018863678, 0.9999942183494568, 0.9999988675117493, 0.9999997615814209, 0.9999999403953552},
			[]float32{-0.7958423495292664, -0.28268295526504517, -0.8667201995849609, -0.1727147251367569, 0.42805278301239014, 0.8011842966079712, -0.564266562461853, 0.9970618486404419, 0.26600468158721924, 0.03992467001080513, 0.017585257068276405, 0.007744282484054565, 0.0034103505313396454, 0.00150180677883327, 0.000661345780827105, 0.0002912346099037677}},
		{"proportional",
			nn.RopeFrequencies{HeadDim: 20, Rotated: 4, Theta: 1e6, Kind: nn.RopeProportional, Factor: 2.5},
			[]float32{0.4000000059604645, 0.10047545284032822, 0, 0, 0, 0, 0, 0, 0, 0},
			[]float32{-0.5432655811309814, 0.2882240116596222, 1, 1, 1, 1, 1, 1, 1, 1},
			[]float32{-0.8395609259605408, 0.957563042640686, 0, 0, 0, 0, 0, 0, 0, 0}},
	} {
		cos, sin := c.f.Tables(514, 0, 514)
		n := c.f.HeadDim / 2
		if few, _ := c.f.Tables(514, 500, 14); !slices.Equal(few, cos[500*n:]) {
			t.Errorf("%s: the last positions differ from those of the whole table", c.name)
		}
		for i, got := range c.f.Inverse() {
			if ulps := int32(math.Float32bits(got)) - int32(math.Float32bits(c.inv[i])); ulps < -1 || ulps > 1 {
				t.Errorf("%s: frequency %d is %v, want %v", c.name, i, got, c.inv[i])
			}
			// One unit in the frequency's last place moves the angle by 513 of them.
			tolerance := 1e-7 + 513*float64(c.inv[i])*0x1p-23
			if d := math.Abs(float64(cos[513*n+i] - c.cos[i])); d > tolerance {
				t.Errorf("%s: cosine %d is off by %g", c.name, i, d)
			}
			if d := math.Abs(float64(sin[513*n+i] - c.sin[i])); d > tolerance {
				t.Errorf("%s: sine %d is off by %g", c.name, i, d)
			}
		}
	}
}

// A head that is rotated in part has the bits that its rotated columns have as a head of their own, in the order that
// RopeFrequencies states, and its other columns as they were. Directly: column i of the rotated ones and column i+r/2
// are a pair, and columns from r on stay.
func TestPartialRope(t *testing.T) {
	const heads, positions = 3, 7
	yarn := nn.RopeFrequencies{HeadDim: 20, Rotated: 12, Theta: 1e4, Kind: nn.RopeYaRN, Factor: 8,
		OriginalPositions: 64, BetaFast: 32, BetaSlow: 1, Magnitude: 1.2}
	for _, f := range []nn.RopeFrequencies{{HeadDim: 12, Rotated: 6, Theta: 1e4}, {HeadDim: 8, Rotated: 2, Theta: 1e6},
		{HeadDim: 16, Rotated: 12, Theta: 500, Kind: nn.RopeLinear, Factor: 3}, yarn} {
		d, r := f.HeadDim, f.Rotated
		var order []int // of columns, by place
		for half := range 2 {
			for i := range r / 2 {
				order = append(order, half*r/2+i)
			}
			for i := range (d - r) / 2 {
				order = append(order, r+half*(d-r)/2+i)
			}
		}
		own := f
		own.HeadDim, own.Rotated = r, 0
		if inv := f.Inverse(); !slices.Equal(inv[:r/2], own.Inverse()) || slices.Max(inv[r/2:]) != 0 ||
			slices.Min(inv[r/2:]) != 0 {
			t.Errorf("%+v: frequencies %v", f, inv)
		}
		if n := f.Divisors(); !slices.Equal(n[:r/2], own.Divisors()) || slices.Max(n[r/2:]) != 1 ||
			slices.Min(n[r/2:]) != 1 {
			t.Errorf("%+v: divisors %v", f, n)
		}
		cos, sin := own.Tables(positions, 0, positions)
		x := normal(rand.New(rand.NewPCG(1, 2)), positions*heads*d, 0, 1)
		placed, want := make([]float32, len(x)), make([]float32, len(x))
		for row := range positions * heads {
			for i := range r / 2 {
				at := row/heads*(r/2) + i
				a, b := x[row*d+i], x[row*d+i+r/2]
				want[row*d+i], want[row*d+i+r/2] = a*cos[at]-b*sin[at], b*cos[at]+a*sin[at]
			}
			copy(want[row*d+r:][:d-r], x[row*d+r:])
			for place, col := range order {
				placed[row*d+place] = x[row*d+col]
			}
		}
		k := newRig(t)
		m := k.mat(tensor.F32, positions, heads*d, placed)
		var numbers []int32
		for i := range int32(positions) {
			numbers = append(numbers, i)
		}
		tables := k.rope(f, positions)
		k.stream.RoPE(m, m, device.Mat{}, heads, tables.Cos, tables.Sin, k.ints(numbers), false)
		k.sync()
		got := k.get(m)
		for row := range positions * heads {
			for place, col := range order {
				if g, w := got[row*d+place], want[row*d+col]; math.Abs(float64(g-w)) > 1e-6 || col >= r && g != w {
					t.Errorf("%+v: column %d of row %d is %v, want %v", f, col, row, g, w)
				}
			}
		}
	}
}
