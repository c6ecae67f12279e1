package ptx

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

func sampleTexts(t testing.TB) [][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.ptx")
	if err != nil || len(files) == 0 {
		t.Fatal("no samples", err)
	}
	var texts [][]byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return texts
}

// survive parses a text and launches what it has on little memory: whatever comes of it is an error or none, never a
// panic.
func survive(src []byte) {
	m, err := Parse(src)
	if err != nil {
		return
	}
	for _, k := range m.Kernels() {
		h := &heap{}
		params := make([]byte, k.ParamBytes())
		for i, p := range k.Params() {
			addr := put(h, counted(256))
			switch {
			case p.Bytes == 8:
				write(params[p.Offset:], 8, addr)
			default:
				write(params[p.Offset:], min(p.Bytes, 4), uint64(16*i))
			}
		}
		threads := uint32(40)
		if k.MaxThreads > 0 {
			threads = uint32(min(k.MaxThreads, 128))
		}
		// What fails, fails: only panics matter here.
		_ = k.Run(h, Config{Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{threads, 1, 1}, SharedBytes: 16 << 10, Params: params,
			WarpInstructions: 20_000})
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range sampleTexts(f) {
		f.Add(text)
	}
	f.Add(kernel("@!p cvt.rn.bf16x2.f32 %r0, 0f3F800000, %r1; bra L; { .local .align 8 .b8 s[8]; mov.b32 %r2, s; } L: ret;"))
	f.Add(kernel("redux.sync.add.s32 %r0, tid, -1; prmt.b32.rc16 %r1, %r0, %r0, 1; setp.lt.and.f32 p|q, %r1, %r0, !p; trap;"))
	f.Add([]byte(".version 8.4 .global .align 4 .b8 x[4] = {1, -2}; .section .x { } /* */"))
	f.Fuzz(func(t *testing.T, src []byte) { survive(src) })
}

var tokenPattern = regexp.MustCompile(`[%$\w.:]+|\S`)

// TestMutatedKernels changes real kernels a little: tokens are left out, doubled, or replaced by others of the text.
func TestMutatedKernels(t *testing.T) {
	texts := sampleTexts(t)
	rapid.Check(t, func(t *rapid.T) {
		src := rapid.SampledFrom(texts).Draw(t, "sample")
		places := tokenPattern.FindAllIndex(src, -1)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			at := places[rapid.IntRange(0, len(places)-1).Draw(t, "token")]
			from := places[rapid.IntRange(0, len(places)-1).Draw(t, "by")]
			if at[1] > len(src) || from[1] > len(src) {
				continue
			}
			by := bytes.Clone(src[from[0]:from[1]])
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				by = nil
			case 1:
				by = append(bytes.Clone(src[at[0]:at[1]]), append([]byte(" "), by...)...)
			}
			src = bytes.Join([][]byte{src[:at[0]], by, src[at[1]:]}, nil)
		}
		survive(src)
	})
}

// TestMutatedOperands exchanges registers of one size for others in real kernels, so that most of them still parse
// and run astray.
func TestMutatedOperands(t *testing.T) {
	register := regexp.MustCompile(`%(rd|rs|r|p)\d+`)
	texts := sampleTexts(t)
	rapid.Check(t, func(t *rapid.T) {
		src := rapid.SampledFrom(texts).Draw(t, "sample")
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			places := register.FindAllSubmatchIndex(src, -1)
			at := places[rapid.IntRange(0, len(places)-1).Draw(t, "register")]
			from := places[rapid.IntRange(0, len(places)-1).Draw(t, "by")]
			if string(src[at[2]:at[3]]) != string(src[from[2]:from[3]]) {
				continue
			}
			src = bytes.Join([][]byte{src[:at[0]], src[from[0]:from[1]], src[at[1]:]}, nil)
		}
		survive(src)
	})
}
