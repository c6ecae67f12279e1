package hf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/tensor"
	"pgregory.net/rapid"
)

// stFile is a safetensors file with a header text and dataBytes bytes of data.
func stFile(header string, dataBytes int) []byte {
	doc := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	doc = append(doc, header...)
	return append(doc, make([]byte, dataBytes)...)
}

// wantOneLine fails unless err is one line that has all the words.
func wantOneLine(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; expected one with %q", words)
	}
	if strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("more than one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

func writeTemp(t *testing.T, name string, data []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBadSafetensors(t *testing.T) {
	const two = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[%d,%d]}}`
	huge := binary.LittleEndian.AppendUint64(nil, 100<<20+1)
	for name, c := range map[string]struct {
		file  []byte
		words []string
	}{
		"empty":               {nil, []string{"too few"}},
		"header too large":    {append(huge, make([]byte, 100)...), []string{"limit"}},
		"header past end":     {append(binary.LittleEndian.AppendUint64(nil, 200), "{}"...), []string{"truncated"}},
		"negative header":     {bytes.Repeat([]byte{0xff}, 64), []string{"limit"}},
		"not json":            {stFile(`{"a":`, 0), []string{"ends too early"}},
		"not utf-8":           {stFile("{\"\xff\":1}", 0), []string{"UTF-8"}},
		"not an object":       {stFile(`[]`, 0), []string{"a list"}},
		"trailing text":       {stFile(`{} x`, 0), []string{"text after"}},
		"nested":              {stFile(strings.Repeat(`{"a":`, 200)+"1"+strings.Repeat("}", 200), 0), []string{"nested"}},
		"duplicate key":       {stFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4), []string{`"a"`, "twice"}},
		"truncated":           {stFile(fmt.Sprintf(two, 8, 12), 11), []string{`"b"`, "truncated", "download"}},
		"oversized":           {stFile(fmt.Sprintf(two, 8, 12), 13), []string{"oversized"}},
		"overlap":             {stFile(fmt.Sprintf(two, 6, 10), 12), []string{`"b"`, "overlaps"}},
		"gap":                 {stFile(fmt.Sprintf(two, 10, 14), 14), []string{`"b"`, "gap of 2"}},
		"wrong span":          {stFile(fmt.Sprintf(two, 8, 11), 12), []string{`"b"`, "3 bytes", "needs 4"}},
		"reversed":            {stFile(fmt.Sprintf(two, 12, 8), 12), []string{`"b"`, "[begin, end]"}},
		"offset overflow":     {stFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[9223372036854775804,9223372036854775807]}}`, 4), []string{`"a"`}},
		"shape overflow":      {stFile(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0), []string{`"a"`, "too large"}},
		"shape nearly":        {stFile(`{"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}}`, 0), []string{`"a"`, "too large"}},
		"negative dimension":  {stFile(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}`, 0), []string{`"a"`, "not a size"}},
		"fraction":            {stFile(`{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,6]}}`, 6), []string{`"a"`, "not a size"}},
		"unknown dtype":       {stFile(`{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}`, 4), []string{`"a"`, "F31"}},
		"no dtype":            {stFile(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, 4), []string{`"a"`, "dtype null"}},
		"no shape":            {stFile(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 4), []string{`"a"`, "shape"}},
		"unknown key":         {stFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}`, 4), []string{`"a"`, `"x"`}},
		"half a byte":         {stFile(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), []string{`"a"`, "whole bytes"}},
		"metadata not string": {stFile(`{"__metadata__":{"a":1}}`, 0), []string{"__metadata__"}},
		"no tensors but data": {stFile(`{}`, 5), []string{"oversized"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeTemp(t, weightsName, c.file)
			w, err := OpenWeights(dir)
			if err == nil {
				w.Close()
			}
			wantOneLine(t, err, append(c.words, weightsName)...)
		})
	}
}

func TestBadShards(t *testing.T) {
	good := stFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4)
	for name, c := range map[string]struct {
		index string
		words []string
	}{
		"missing shard":  {`{"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}`, []string{"two.safetensors", "missing", "download"}},
		"missing tensor": {`{"weight_map":{"a":"one.safetensors","b":"one.safetensors"}}`, []string{"one.safetensors", `"b"`, "missing"}},
		"path":           {`{"weight_map":{"a":"../one.safetensors"}}`, []string{`"a"`, "not a file name"}},
		"parent":         {`{"weight_map":{"a":".."}}`, []string{`"a"`, "not a file name"}},
		"number":         {`{"weight_map":{"a":1}}`, []string{`"a"`, "not a file name"}},
		"duplicate":      {`{"weight_map":{"a":"one.safetensors","a":"one.safetensors"}}`, []string{`"a"`, "twice"}},
		"empty":          {`{"weight_map":{}}`, []string{"empty"}},
		"no map":         {`{"metadata":{}}`, []string{"weight_map"}},
		"not json":       {`x`, []string{indexName, "not JSON"}},
		"directory":      {`{"weight_map":{"a":"sub"}}`, []string{"sub", "regular file"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeTemp(t, indexName, []byte(c.index))
			os.WriteFile(filepath.Join(dir, "one.safetensors"), good, 0o644)
			os.Mkdir(filepath.Join(dir, "sub"), 0o755)
			_, err := OpenWeights(dir)
			wantOneLine(t, err, c.words...)
		})
	}
	_, err := OpenWeights(t.TempDir())
	wantOneLine(t, err, "neither", indexName)
}

func TestReadConversions(t *testing.T) {
	vals := []float32{0, 1, -2.5, 65504, 1 + 1.0/256, 3.0 / 1024, float32(math.Ldexp(1, -24))}
	dir := t.TempDir()
	specs := []TensorSpec{
		{Name: "f16", DType: tensor.F16, Shape: tensor.Shape{7}},
		{Name: "f32", DType: tensor.F32, Shape: tensor.Shape{7}},
		{Name: "bf16", DType: tensor.BF16, Shape: tensor.Shape{7, 1}},
	}
	data := map[string][]byte{}
	for _, v := range vals {
		data["f16"] = binary.LittleEndian.AppendUint16(data["f16"], tensor.F16FromF32(v))
		data["bf16"] = binary.LittleEndian.AppendUint16(data["bf16"], tensor.BF16FromF32(v))
		data["f32"] = binary.LittleEndian.AppendUint32(data["f32"], math.Float32bits(v))
	}
	writeModel(t, dir+"/m", specs, data, WriteOptions{})
	w, err := OpenWeights(dir + "/m")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, name := range []string{"f16", "f32", "bf16"} {
		got, bf := make([]float32, 5), make([]uint16, 5)
		if err := w.ReadF32(name, got, 2); err != nil {
			t.Fatal(err)
		}
		if err := w.ReadBF16(name, bf, 2); err != nil {
			t.Fatal(err)
		}
		for i, v := range vals[2:] {
			want := v
			if name == "bf16" {
				want = tensor.F32FromBF16(tensor.BF16FromF32(v))
			} else if name == "f16" {
				want = tensor.F32FromF16(tensor.F16FromF32(v))
			}
			if got[i] != want {
				t.Errorf("%s element %d: %v, want %v", name, i+2, got[i], want)
			}
			if bf[i] != tensor.BF16FromF32(want) {
				t.Errorf("%s element %d as bf16: %#x, want %#x", name, i+2, bf[i], tensor.BF16FromF32(want))
			}
		}
		wantOneLine(t, w.ReadF32(name, got, 3), name, "outside")
		wantOneLine(t, w.ReadBF16(name, bf, -1), name, "outside")
	}
	wantOneLine(t, w.ReadF32("nope", nil, 0), `"nope"`, "no tensor")
	wantOneLine(t, w.Expect("bf16", tensor.Shape{7}), `"bf16"`, "[7 1]", "[7]", "config.json")
	if err := w.Expect("bf16", tensor.Shape{7, 1}); err != nil {
		t.Error(err)
	}
	raw := make([]byte, 3)
	if err := w.ReadAt("f16", raw, 1); err != nil || !bytes.Equal(raw, data["f16"][1:4]) {
		t.Errorf("ReadAt: %x, %v", raw, err)
	}
	wantOneLine(t, w.ReadAt("f16", raw, 12), "outside")
	wantOneLine(t, w.ReadAt("f16", raw, math.MaxInt64), "outside")
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	bits := map[string][]byte{
		"nan32": binary.LittleEndian.AppendUint32(make([]byte, 4), 0x7fc00001), "inf16": {0, 0, 0, 0x7c}, "nanb": {0, 0, 0xc1, 0xff},
		"big": binary.LittleEndian.AppendUint32(make([]byte, 4), math.Float32bits(math.MaxFloat32)),
	}
	specs := []TensorSpec{{Name: "nan32", DType: tensor.F32, Shape: tensor.Shape{2}},
		{Name: "inf16", DType: tensor.F16, Shape: tensor.Shape{2}},
		{Name: "nanb", DType: tensor.BF16, Shape: tensor.Shape{2}},
		{Name: "big", DType: tensor.F32, Shape: tensor.Shape{2}}}
	writeModel(t, dir+"/m", specs, bits, WriteOptions{})
	w, err := OpenWeights(dir + "/m")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, s := range specs {
		if s.Name != "big" {
			wantOneLine(t, w.ReadF32(s.Name, make([]float32, 2), 0), s.Name, "element 1", "finite")
		} else if err := w.ReadF32(s.Name, make([]float32, 2), 0); err != nil {
			t.Error(err)
		}
		// The largest fp32 number rounds to infinity in bf16.
		wantOneLine(t, w.ReadBF16(s.Name, make([]uint16, 2), 0), s.Name, "element 1", "finite")
	}

	dir = writeTemp(t, weightsName, stFile(`{"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}`, 16))
	w, err = OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	info, ok := w.Info("ids")
	if !ok || info.DType != tensor.Invalid || info.Type != "I64" || info.Bytes != 16 {
		t.Errorf("info of an I64 tensor: %+v", info)
	}
	wantOneLine(t, w.ReadF32("ids", make([]float32, 2), 0), `"ids"`, "I64", "cannot be trained")
	if err := os.Truncate(filepath.Join(dir, weightsName), 30); err != nil {
		t.Fatal(err)
	}
	wantOneLine(t, w.ReadAt("ids", make([]byte, 16), 0), "ids", "shorter")
}

// writeModel writes a model directory with the tensors' bytes.
func writeModel(t interface{ Fatal(...any) }, dir string, specs []TensorSpec, data map[string][]byte, opts WriteOptions) {
	err := WriteModel(dir, Model{Config: []byte("{}"), Tensors: specs, Data: func(yield func(Piece, error) bool) {
		for _, s := range specs {
			if !yield(Piece{s.Name, data[s.Name]}, nil) {
				return
			}
		}
	}}, opts)
	if err != nil {
		t.Fatal(err)
	}
}

// TestRoundTrip: whatever is written, in whatever pieces and shards, is read back, and every file obeys the format.
func TestRoundTrip(t *testing.T) {
	tmp := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		dir := filepath.Join(tmp, fmt.Sprint(run))
		var specs []TensorSpec
		data := map[string][]byte{}
		for i := range rapid.IntRange(1, 8).Draw(t, "tensors") {
			s := TensorSpec{
				Name:  fmt.Sprintf("%d.%s", i, rapid.StringN(0, 5, -1).Draw(t, "name")),
				DType: rapid.SampledFrom([]tensor.DType{tensor.F32, tensor.F16, tensor.BF16}).Draw(t, "dtype"),
				Shape: rapid.SliceOfN(rapid.IntRange(0, 5), 0, 3).Draw(t, "shape"),
			}
			s.Name = strings.ToValidUTF8(s.Name, "?")
			specs = append(specs, s)
			n := int(s.Bytes())
			data[s.Name] = rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")
		}
		w, err := CreateModel(dir, specs, WriteOptions{ShardBytes: int64(rapid.IntRange(0, 300).Draw(t, "shard"))})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range specs {
			for rest := data[s.Name]; len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
				if err := w.Write(s.Name, rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
		}
		if err := w.AddFile(configName, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		got, err := OpenWeights(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Close()
		if len(got.Names()) != len(specs) {
			t.Fatalf("%d tensors, want %d", len(got.Names()), len(specs))
		}
		for _, s := range specs {
			info, ok := got.Info(s.Name)
			if !ok || info.DType != s.DType || !info.Shape.Equal(s.Shape) || info.Bytes != s.Bytes() {
				t.Fatalf("%q: %+v, want %+v", s.Name, info, s)
			}
			back := make([]byte, info.Bytes)
			if err := got.ReadAt(s.Name, back, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(back, data[s.Name]) {
				t.Fatalf("%q: %x, want %x", s.Name, back, data[s.Name])
			}
			// Wider types first, so every tensor is aligned to its element size.
			if loc := got.tensors[s.Name]; loc.begin%s.DType.Bytes() != 0 {
				t.Fatalf("%q begins at %d", s.Name, loc.begin)
			}
		}
	})
}

func TestShardsAsTransformersWritesThem(t *testing.T) {
	dir := t.TempDir() + "/m"
	specs := []TensorSpec{
		{Name: "b", DType: tensor.BF16, Shape: tensor.Shape{4}},
		{Name: "a", DType: tensor.BF16, Shape: tensor.Shape{2}},
		{Name: "c", DType: tensor.BF16, Shape: tensor.Shape{100}},
		{Name: "d", DType: tensor.BF16},
	}
	data := map[string][]byte{"a": make([]byte, 4), "b": make([]byte, 8), "c": make([]byte, 200), "d": make([]byte, 2)}
	writeModel(t, dir, specs, data, WriteOptions{ShardBytes: 12})
	got, err := os.ReadFile(filepath.Join(dir, indexName))
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "metadata": {
    "total_size": 214
  },
  "weight_map": {
    "a": "model-00001-of-00003.safetensors",
    "b": "model-00001-of-00003.safetensors",
    "c": "model-00002-of-00003.safetensors",
    "d": "model-00003-of-00003.safetensors"
  }
}
`
	if string(got) != want {
		t.Errorf("index:\n%s\nwant:\n%s", got, want)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 5 {
		t.Errorf("%d files", len(entries))
	}
	f, err := openSafetensors(dir, "model-00003-of-00003.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	f.f.Close()
	head, _ := os.ReadFile(f.path)
	n := binary.LittleEndian.Uint64(head)
	var header map[string]any
	if err := json.Unmarshal(head[8:8+n], &header); err != nil || n%8 != 0 {
		t.Errorf("header of %d bytes: %v", n, err)
	}
	if meta, ok := header["__metadata__"].(map[string]any); !ok || meta["format"] != "pt" {
		t.Errorf("metadata %v: transformers refuses a file without its format", header["__metadata__"])
	}
}

func FuzzSafetensorsHeader(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}}`), int64(12))
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}  `), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, dataBytes int64) {
		if dataBytes < 0 || dataBytes > 1<<40 {
			return
		}
		size := int64(len(header)) + 8 + dataBytes
		tensors, err := parseSafetensorsHeader(header, size)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		var total int64
		for name, x := range tensors {
			if x.begin < size-dataBytes || x.end > size || x.begin > x.end || x.elems*dtypeBits[x.dtype]/8 != x.end-x.begin {
				t.Errorf("tensor %q: %+v in a file of %d", name, x, size)
			}
			total += x.end - x.begin
		}
		if total != dataBytes {
			t.Errorf("tensors fill %d of %d bytes", total, dataBytes)
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00002.safetensors"}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		m, err := parseIndex(doc)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		for _, file := range m {
			if filepath.Base(file) != file {
				t.Errorf("shard %q is not a file name", file)
			}
		}
	})
}
