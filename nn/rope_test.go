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
// and sines at position 513; proportional ones with Gemma4TextRotaryEmbedding of transformers 5.24.0. Those of yarn and
// longrope are by the formulas of transformers' modeling_rope_utils.py, computed apart.
func TestRope(t *testing.T) {
	for _, c := range []struct {
		name          string
		f             nn.RopeFrequencies
		inv, cos, sin []float32
	}{
		{"default", nn.RopeFrequencies{HeadDim: 22, Theta: 10000},
			[]float32{1.0, 0.4328761398792267, 0.18738172948360443, 0.08111307770013809, 0.035111911594867706,
				0.01519910991191864, 0.006579331122338772, 0.0028480361215770245, 0.0012328465236350894, 0.0005336699541658163,
				0.00023101292026694864},
			[]float32{-0.6055038571357727, -0.5506795644760132, -0.30338919162750244, -0.7176995873451233, 0.669586181640625,
				0.05680757761001587, -0.9728384017944336, 0.10953358560800552, 0.8065814971923828, 0.9627577662467957,
				0.9929859638214111},
			[]float32{-0.7958423495292664, 0.8347167372703552, 0.9528667330741882, -0.6963528990745544, -0.7427343726158142,
				0.9983851313591003, -0.23148539662361145, 0.9939830899238586, 0.5911228656768799, 0.27036553621292114,
				0.11823242157697678}},
		{"linear", nn.RopeFrequencies{HeadDim: 12, Theta: 10000, Kind: nn.RopeLinear, Factor: 2.5},
			[]float32{0.4000000059604645, 0.08617737889289856, 0.018566353246569633, 0.003999999724328518,
				0.0008617737330496311, 0.00018566357903182507},
			[]float32{-0.5432655811309814, 0.9744136929512024, -0.9950279593467712, -0.4628463387489319, 0.9038594961166382,
				0.9954676032066345},
			[]float32{-0.8395609259605408, 0.22476188838481903, -0.09959564357995987, 0.8864385485649109, 0.427829384803772,
				0.09510147571563721}},
		{"llama3", nn.RopeFrequencies{HeadDim: 32, Theta: 500000, Kind: nn.RopeLlama3, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 8192},
			[]float32{1.0, 0.44036662578582764, 0.193922758102417, 0.08539710193872452, 0.03760603070259094,
				0.016560440883040428, 0.00729266507551074, 0.0032114461064338684, 0.0005248460220173001, 7.784655463183299e-05,
				3.428102354519069e-05, 1.5096217794052791e-05, 6.647869668086059e-06, 2.927499735960737e-06,
				1.289173155782919e-06, 5.677088097399974e-07},
			[]float32{-0.6055038571357727, 0.959213376045227, 0.49879464507102966, 0.9849718809127808, 0.9037537574768066,
				-0.5984176397323608, -0.8255926370620728, -0.07660046964883804, 0.963971734046936, 0.9992026686668396,
				0.9998453855514526, 0.999970018863678, 0.9999942183494568, 0.9999988675117493, 0.9999997615814209,
				0.9999999403953552},
			[]float32{-0.7958423495292664, -0.28268295526504517, -0.8667201995849609, -0.1727147251367569,
				0.42805278301239014, 0.8011842966079712, -0.564266562461853, 0.9970618486404419, 0.26600468158721924,
				0.03992467001080513, 0.017585257068276405, 0.007744282484054565, 0.0034103505313396454, 0.00150180677883327,
				0.000661345780827105, 0.0002912346099037677}},
		{"proportional",
			nn.RopeFrequencies{HeadDim: 20, Rotated: 4, Theta: 1e6, Kind: nn.RopeProportional, Factor: 2.5},
			[]float32{0.4000000059604645, 0.10047545284032822, 0, 0, 0, 0, 0, 0, 0, 0},
			[]float32{-0.5432655811309814, 0.2882240116596222, 1, 1, 1, 1, 1, 1, 1, 1},
			[]float32{-0.8395609259605408, 0.957563042640686, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"yarn", nn.RopeFrequencies{HeadDim: 32, Theta: 10000, Kind: nn.RopeYaRN, Factor: 4, OriginalPositions: 4096,
			BetaFast: 32, BetaSlow: 1, Whole: true, Magnitude: nn.YaRNMagnitude(4, 1)},
			[]float32{1.0, 0.5623413252, 0.316227766, 0.177827941, 0.1, 0.05623413252, 0.02823462197, 0.01397219536,
				0.006785714286, 0.003213379001, 0.001468200342, 0.0006350997893, 0.00025, 0.0001405853313, 7.90569415e-05,
				4.445698525e-05},
			[]float32{-0.6894445473, 0.9734225544, 0.4775804898, -1.130502798, 0.5817721441, -0.9562862133, -0.3874308499,
				0.7214777301, -1.073645986, -0.08834516563, 0.8306448932, 1.078729551, 1.12927814, 1.135669523, 1.137693152,
				1.138333329},
			[]float32{-0.9061695255, -0.5906991818, -1.033631399, -0.1357954916, 0.9787840237, -0.6180563655, 1.070688717,
				0.8808784693, -0.3791586601, 1.135196954, 0.7787849858, 0.3644441642, 0.145629238, 0.08204709909, 0.04616583758,
				0.02596582535}},
		{"longrope", nn.RopeFrequencies{HeadDim: 12, Theta: 10000, Kind: nn.RopeLong, OriginalPositions: 16384,
			Short: nn.NewFactors([]float64{1, 1.5, 2.25, 4, 6.5, 9}), Magnitude: nn.LongRopeMagnitude(4, 16384)},
			[]float32{1.0, 0.1436289698, 0.02062928118, 0.002499999944, 0.000331451447, 5.157322084e-05},
			[]float32{-0.6473108813, -0.155279004, -0.4288288809, 0.3039501211, 1.053628178, 1.068670836},
			[]float32{-0.8507912587, -1.057707698, -0.9792665285, 1.024925103, 0.1808999864, 0.02828048976}},
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

// Queries are turned and multiplied by a table of their own, whose factor grows with the number of times that a
// position has passed the original ones. Only documents that are long have longrope's second table.
func TestRopeTables(t *testing.T) {
	f := nn.RopeFrequencies{HeadDim: 4, Theta: 100, QueryBeta: 0.5, OriginalPositions: 3}
	const n = 8
	cos, _ := f.Tables(n, 0, f.Rows(n))
	if f.Rows(n) != 2*n || len(cos) != 2*n*2 {
		t.Fatalf("%d rows, %d cosines", f.Rows(n), len(cos))
	}
	for p := range n {
		factor := 1 + 0.5*math.Log(1+float64(p/3))
		for i := range 2 {
			plain, scaled := float64(cos[2*p+i]), float64(cos[2*(n+p)+i])
			if math.Abs(scaled-factor*plain) > 1e-6 {
				t.Errorf("position %d: cosine %d is %v for queries and %v for keys, want a factor of %v", p, i, scaled, plain,
					factor)
			}
		}
	}
	long := nn.RopeFrequencies{HeadDim: 4, Theta: 100, Kind: nn.RopeLong, OriginalPositions: 5, Magnitude: 1,
		Short: nn.NewFactors([]float64{1, 2}), Long: nn.NewFactors([]float64{1, 8})}
	if long.Rows(5) != 5 || long.Rows(6) != 12 || long.IsLong(5) || !long.IsLong(6) {
		t.Errorf("%d and %d rows", long.Rows(5), long.Rows(6))
	}
	positions, start, end := []int32{0, 1, 2, 3, 4, 5, 0, 1}, []int32{0, 0, 0, 0, 0, 0, 6, 6}, []int32{6, 6, 6, 6, 6, 6,
		8, 8}
	long.Place(positions, start, end, 6)
	if want := []int32{6, 7, 8, 9, 10, 11, 0, 1}; !slices.Equal(positions, want) {
		t.Errorf("positions are in rows %v, want %v", positions, want)
	}
	_, sin := long.Tables(6, 0, 12)
	for p := range 6 {
		for table, divisor := range []float64{2, 8} {
			if got, want := float64(sin[2*(6*table+p)+1]), math.Sin(float64(p)*0.1/divisor); math.Abs(got-want) > 1e-6 {
				t.Errorf("table %d: the sine of position %d is %v, want %v", table, p, got, want)
			}
		}
	}
}

// Frequencies were divided by their divisors, and magnitudes are 1 where nothing is stretched.
func TestRopeDivisors(t *testing.T) {
	plain := nn.RopeFrequencies{HeadDim: 12, Theta: 1e4}
	linear := plain
	linear.Kind, linear.Factor = nn.RopeLinear, 2.5
	for i, d := range linear.Divisors() {
		if math.Abs(float64(d)-2.5) > 1e-6 || plain.Divisors()[i] != 1 {
			t.Errorf("frequency %d is divided by %v, and by %v of the default kind", i, d, plain.Divisors()[i])
		}
	}
	partly := nn.RopeFrequencies{HeadDim: 20, Rotated: 8, Theta: 1e4, Kind: nn.RopeProportional, Factor: 3}
	for i, d := range partly.Divisors() {
		want := 1.0
		if i < 4 {
			want = 3
		}
		if math.Abs(float64(d)-want) > 1e-6 {
			t.Errorf("frequency %d of a part is divided by %v, want %v", i, d, want)
		}
	}
	// Where yarn's ramp has no length, frequencies are kept or stretched: those that turn once or more are kept.
	steep := nn.RopeFrequencies{HeadDim: 16, Theta: 1e4, Kind: nn.RopeYaRN, Factor: 4, OriginalPositions: 64, BetaFast: 1,
		BetaSlow: 1}
	for i, d := range steep.Divisors() {
		want := 4.0
		if 64*math.Pow(1e4, -float64(i)/8) >= 2*math.Pi {
			want = 1
		}
		if math.Abs(float64(d)-want) > 1e-6 {
			t.Errorf("frequency %d of a steep ramp is divided by %v, want %v", i, d, want)
		}
	}
	if nn.YaRNMagnitude(1, 1) != 1 || nn.LongRopeMagnitude(1, 4096) != 1 || nn.LongRopeMagnitude(4, 1) != 1 ||
		nn.LongRopeMagnitude(4, 4) != math.Sqrt2 || nn.YaRNMagnitude(math.E, 2) != 1.2 {
		t.Error("a magnitude is another one")
	}
}
