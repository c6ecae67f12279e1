package timeline

import (
	"math"
	"strconv"
	"testing"
)

// sights turn linear RGB into the colors that people with and without color blindness see.
// Source: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for Simulation of Color
// Vision Deficiency", IEEE TVCG 15(6), 2009, severity 1.0.
var sights = map[string][3][3]float64{
	"usual":        {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

// linear is the color #rrggbb as linear RGB.
func linear(t *testing.T, color string) (rgb [3]float64) {
	t.Helper()
	for i := range rgb {
		v, err := strconv.ParseUint(color[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		if c := float64(v) / 255; c <= 0.04045 {
			rgb[i] = c / 12.92
		} else {
			rgb[i] = math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return rgb
}

// lab is linear RGB in CIELAB, white being D65.
func lab(rgb [3]float64) [3]float64 {
	f := func(x float64) float64 {
		if x > 216.0/24389 {
			return math.Cbrt(x)
		}
		return (24389.0/27*x + 16) / 116
	}
	r, g, b := rgb[0], rgb[1], rgb[2]
	x := f((0.4124*r + 0.3576*g + 0.1805*b) / 0.95047)
	y := f(0.2126*r + 0.7152*g + 0.0722*b)
	z := f((0.0193*r + 0.1192*g + 0.9505*b) / 1.08883)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

func seen(rgb [3]float64, by [3][3]float64) (out [3]float64) {
	for i := range out {
		for j := range rgb {
			out[i] += by[i][j] * rgb[j]
		}
		out[i] = min(max(out[i], 0), 1)
	}
	return out
}

// Readers tell apart the tints that one lane can show, and every tint from the track, whatever their color vision. A
// difference of 15 in CIELAB is plain for neighbouring areas.
func TestColorsDiffer(t *testing.T) {
	lanes := []string{"fhb", "wae", "ag", "ue", "rd"} // classes, by lane
	for theme, page := range pages {
		for sight, matrix := range sights {
			at := func(color string) [3]float64 { return lab(seen(linear(t, color), matrix)) }
			apart := func(one, other, a, b string, least float64) {
				x, y := at(a), at(b)
				if d := math.Hypot(math.Hypot(x[0]-y[0], x[1]-y[1]), x[2]-y[2]); d < least {
					t.Errorf("theme %d, %s: %s and %s differ by %.1f", theme, sight, one, other, d)
				}
			}
			for i, a := range tints {
				apart(a.means, "the track", a.fill[theme], page.track, 20)
				for _, b := range tints[i+1:] {
					for _, lane := range lanes {
						if containsBoth(lane, a.class, b.class) {
							apart(a.means, b.means, a.fill[theme], b.fill[theme], 15)
						}
					}
				}
			}
		}
	}
}

func containsBoth(lane, a, b string) bool {
	var has [2]bool
	for _, c := range lane {
		has[0], has[1] = has[0] || string(c) == a, has[1] || string(c) == b
	}
	return has[0] && has[1]
}

// Text has a contrast of at least 4.5 with the ground (WCAG 2.2, 1.4.3).
func TestTextIsReadable(t *testing.T) {
	luminance := func(color string) float64 {
		c := linear(t, color)
		return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2]
	}
	for theme, p := range pages {
		for _, color := range []string{p.text, p.muted} {
			a, b := luminance(color), luminance(p.ground)
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
				t.Errorf("theme %d: text %s has a contrast of %.1f", theme, color, ratio)
			}
		}
	}
}
