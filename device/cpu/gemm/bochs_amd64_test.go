package gemm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

var bochsFile = flag.String("bochs", "", "file for the code of tileAMX, operands and expected sums, as bochs/boot.S has it")

// bochsAt has the address at which boot.S loads the file: addresses in the file are final.
const bochsAt = 0x10000

// The file for a boot sector in the emulator Bochs, which has AMX where this machine has not.
func TestWriteBochsFile(t *testing.T) {
	if *bochsFile == "" {
		t.Skip("-bochs names no file to write")
	}
	const maxCases = 64
	code := symbolBytes(t, "github.com/millrace/millrace/device/cpu/gemm.tileAMX.abi0")
	var data bytes.Buffer
	put := func(x any) uint64 {
		for data.Len()%64 != 0 {
			data.WriteByte(0)
		}
		at := uint64(data.Len())
		if err := binary.Write(&data, binary.LittleEndian, x); err != nil {
			t.Fatal(err)
		}
		return bochsAt + at
	}
	put([2 + 8*maxCases]uint64{}) // the header, written again when it is known
	header := []uint64{0, put(code)}
	for _, rows := range []int{1, 15, 16, 17, 32} {
		for _, of := range []struct{ steps, exponent int }{{1, 0}, {1, -67}, {3, 0}, {3, -67}} { // they must fit below 640 KiB
			header[0]++
			header = append(header, newBochsCase(rows, of.steps, of.exponent, put)...)
		}
	}
	if header[0] > maxCases {
		t.Fatalf("%d cases", header[0])
	}
	file := data.Bytes()
	if _, err := binary.Encode(file, binary.LittleEndian, header); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*bochsFile, file, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of machine code, %d cases, %d bytes", len(code), header[0], len(file))
}

// newBochsCase is a call of tileAMX: its arguments in their order, then the address and the bytes of what must be at c
// after it.
func newBochsCase(rows, steps, exponent int, put func(any) uint64) []uint64 {
	const poison, stride = 0x7fc17fc1, 36 // floats from row to row of C
	rng := rand.New(rand.NewPCG(uint64(rows), uint64(steps)))
	a, b, c := make([][32][32]uint16, steps), make([][16][32][2]uint16, steps), make([]uint32, 32*stride)
	number := func() uint16 {
		return tensor.BF16FromF32(float32(math.Ldexp(rng.NormFloat64(), exponent+rng.IntN(9)-4)))
	}
	for s := range steps {
		for i := range 32 {
			for k := range 32 {
				a[s][i][k], b[s][k/2][i][k%2] = number(), number()
			}
		}
	}
	a[0][0][3], b[0][1][0][1] = 0x0001, 0x8003 // denormals
	for i := range c {
		c[i] = poison
	}
	want := append([]uint32(nil), c...)
	config := &tileConfigs[rows-1]
	for i := range 32 {
		if i >= int(config.rows[i/16*2])+i/16*16 {
			continue
		}
		var sums [32]float32
		panelRow(sums[:], a, b, i)
		for j, sum := range sums {
			want[i*stride+j] = math.Float32bits(sum)
		}
	}
	return []uint64{uint64(steps), put(a), put(b), put(c), 4 * stride, put((*[64]byte)(unsafe.Pointer(config))),
		put(want), uint64(4 * len(want))}
}

// symbolBytes is the machine code of a routine in this test's own program.
func symbolBytes(t *testing.T, name string) []byte {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatalf("build the test with `go test -c`, which keeps its symbols: %v", err)
	}
	for _, s := range symbols {
		if s.Name == name {
			section := f.Sections[s.Section]
			code := make([]byte, s.Size)
			if _, err := section.ReadAt(code, int64(s.Value-section.Addr)); err != nil {
				t.Fatal(err)
			}
			return code
		}
	}
	t.Fatalf("no routine %s", name)
	return nil
}
