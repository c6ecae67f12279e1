package hf

import (
	"io/fs"
	"os"
	"testing"
)

// A safetensors file may be written to a device, such as /dev/null, which stays a device.
func TestFileWriterToDevice(t *testing.T) {
	w, err := CreateFile(os.DevNull, []TensorSpec{f32Spec("a", 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write("a", make([]byte, 4)); err != nil {
		t.Error(err)
	}
	if err := w.Commit(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		t.Errorf("the device is %v, %v", info, err)
	}
}
