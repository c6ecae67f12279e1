package runfile

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// wholeMachine has every rate that a plan needs, and a drive.
const wholeMachine = `name: my GPU
device_memory: 24GiB
host_memory: 200GB
disk_space: 2TB
rated_writes: 1200TB
f32_flops_per_sec: 50e12
bf16_flops_per_sec: 1.5e14
attention_flops_per_sec: 60e12
attention_flops_per_sec_by_length: [{sequence_len: 2048, flops_per_sec: 50e12}, {sequence_len: 8192, flops_per_sec: 70e12}]
device_bytes_per_sec: 800e9
upload_bytes_per_sec: 25e9
download_bytes_per_sec: 24000000000
adamw_bytes_per_sec: 40e9
host_bytes_per_sec: 50e9
disk_read_bytes_per_sec: 6e9
disk_write_bytes_per_sec: 2e9
network: 100Gb
`

func TestMachineFile(t *testing.T) {
	on, err := ParseMachine([]byte(wholeMachine))
	if err != nil {
		t.Fatal(err)
	}
	m := on.Machine
	if on.Device.Name != "my GPU" || on.Device.MemoryBytes != 24<<30 || on.DeviceBytes != 23<<30 || on.HostBytes != 180e9 ||
		on.DiskBytes != 1.8e12 || on.RatedWriteBytes != 1200e12 ||
		on.Device.Unified || on.Device.PinnedDeviceBytesPerMiB == 0 || on.Devices != 1 {
		t.Errorf("%+v", on)
	}
	if m.NetworkBytesPerSec != 11e9 || m.BF16FLOPsPerSec != 150e12 || m.DownloadBytesPerSec != 24e9 ||
		len(m.AttentionByLength) != 2 || m.AttentionByLength[1].FLOPsPerSec != 70e12 ||
		m.DeviceOpsPerSec != plan.GPUOpsPerSec {
		t.Errorf("%+v", m)
	}
	if sum := m.UploadUnderAdamWBytesPerSec + m.DownloadUnderAdamWBytesPerSec + m.AdamWUnderCopiesBytesPerSec; math.Abs(sum-50e9) > 1 {
		t.Errorf("what happens at once has %v of the RAM's 50e9 bytes/s", sum)
	}
}

// A base gives what the file does not have. Rates of what happens at once follow from those that the file changes,
// unless it has them, too.
func TestMachineFileWithABase(t *testing.T) {
	base, err := plan.FindMachine("rtx4090-pc-256gb")
	if err != nil {
		t.Fatal(err)
	}
	same, err := ParseMachine([]byte(`{"base": "rtx4090-pc-256gb"}`))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(base, same); d != "" {
		t.Error(d)
	}
	on, err := ParseMachine([]byte("host_memory: 192GiB\nupload_bytes_per_sec: 12e9\nduplex_upload_bytes_per_sec: 11e9\n" +
		"base: rtx4090-pc-256gb\nbf16_flops_per_sec: 140e12\n"))
	if err != nil {
		t.Fatal(err)
	}
	m := on.Machine
	if m.BF16FLOPsPerSec != 140e12 || m.F32FLOPsPerSec != base.Machine.F32FLOPsPerSec || m.DuplexUploadBytesPerSec != 11e9 ||
		m.DuplexDownloadBytesPerSec != base.Machine.DownloadBytesPerSec || m.UploadUnderAdamWBytesPerSec >= 12e9 ||
		on.HostBytes >= base.HostBytes || on.DeviceBytes != base.DeviceBytes || on.DiskBytes != base.DiskBytes {
		t.Errorf("%+v", on)
	}
}

// The file of a named machine describes the same machine.
func TestMachineText(t *testing.T) {
	for _, named := range plan.Machines() {
		got, err := ParseMachine([]byte(MachineText(named)))
		if err != nil {
			t.Errorf("%s: %v", named.Name, err)
			continue
		}
		close := cmpopts.EquateApprox(1e-5, 0)
		for what, d := range map[string]string{
			"rates":   cmp.Diff(named.Machine, got.Machine, close, cmpopts.IgnoreFields(plan.Machine{}, "Name")),
			"device":  cmp.Diff(named.Device, got.Device),
			"devices": cmp.Diff(named.Devices, got.Devices),
			"sizes": cmp.Diff([]float64{float64(named.DeviceBytes), float64(named.HostBytes), float64(named.DiskBytes),
				float64(named.RatedWriteBytes)}, []float64{float64(got.DeviceBytes), float64(got.HostBytes),
				float64(got.DiskBytes), float64(got.RatedWriteBytes)}, close),
		} {
			if d != "" {
				t.Errorf("%s: %s: %s", named.Name, what, d)
			}
		}
	}
}

// The file of a probe of a GPU is a machine file; one of a device that computes on the host's memory is not.
func TestMachineFileOfAProbe(t *testing.T) {
	on, err := ParseMachine([]byte(wholeMachine))
	if err != nil {
		t.Fatal(err)
	}
	probed := on.Machine
	probed.Name, probed.Kind, probed.DiskPath = "NVIDIA H200", "H200", "/data"
	probed.DeviceMemoryBytes, probed.HostMemoryBytes = 140<<30, 1<<40
	probed.Operations = []plan.OperationRate{
		{Operation: nn.OfAttention, Compute: "bf16", HeadDim: 64, SequenceLen: 2048, FLOPsPerSec: 1e14},
		{Operation: nn.OfExperts, Rows: 64, FLOPsPerSec: 2e13}, {Operation: nn.OfConv, BytesPerSec: 3e12}}
	path := filepath.Join(t.TempDir(), "machine.json")
	if err := plan.WriteMachine(path, probed); err != nil {
		t.Fatal(err)
	}
	got, err := ReadMachine(path)
	if err != nil {
		t.Fatal(err)
	}
	ignored := cmpopts.IgnoreFields(plan.Machine{}, "Name", "Kind", "DiskPath", "DeviceMemoryBytes",
		"HostMemoryBytes")
	if d := cmp.Diff(probed, got.Machine, ignored); d != "" || got.DeviceBytes != 139<<30 || got.Device.Name != "NVIDIA H200" ||
		got.DiskBytes != 0 || !strings.Contains(got.Machine.Name, path) {
		t.Errorf("%s%+v", d, got)
	}
	text, err := ParseMachine([]byte(MachineText(got)))
	if d := cmp.Diff(got.Machine.Operations, text.Machine.Operations); d != "" || err != nil {
		t.Errorf("%v: %s", err, d)
	}
	probed.DeviceMemoryBytes = 0
	if err := plan.WriteMachine(path, probed); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMachine(path); err == nil || !strings.Contains(err.Error(), "device_memory is missing") {
		t.Error(err)
	}
}

func TestBadMachineFiles(t *testing.T) {
	const base = "base: rtx4090-pc-256gb\n"
	for doc, want := range map[string]string{
		"":                                      "not a mapping",
		"[1]":                                   "not a mapping",
		"a: [":                                  "line 1",
		"base: 4090\n":                          "line 1: base: machine \"4090\" is unknown: did you mean",
		base + "host_memori: 1GiB\n":            "line 2: unknown key host_memori: did you mean host_memory?",
		base + "colour: red\n":                  "line 2: unknown key colour: keys are base, name, devices",
		base + "a1: 1\nb2: 2\n":                 "lines 2, 3: unknown keys a1, b2: keys are base",
		base + "kinds: x\n":                     "line 2: unknown key kinds: keys are base",
		base + "host_memory: lots\n":            "line 2: host_memory must be a size, such as 24GiB, not lots",
		base + "host_memory: -5\n":              "host_memory must be a size",
		base + "devices: 0\n":                   "line 2: devices must be a number from 1 to 64, not 0",
		base + "devices: two\n":                 "devices must be a number from 1 to 64, not two",
		base + "host_memory: none\n":            "host_memory must be a size",
		base + "network: 100\n":                 "line 2: network: network \"100\" is unknown",
		base + "bf16_flops_per_sec: fast\n":     "line 2: bf16_flops_per_sec must be a number above 0, such as 150e12, not fast",
		base + "bf16_flops_per_sec: -1\n":       "must be a number above 0",
		base + "bf16_flops_per_sec: .nan\n":     "must be a number above 0",
		base + "bf16_flops_per_sec: 1e30\n":     "bf16_flops_per_sec is 1e+30",
		base + "upload_bytes_per_sec: [1]\n":    "line 2: upload_bytes_per_sec must be one value",
		base + "upload_bytes_per_sec: &a 5e9\n": "line 2: upload_bytes_per_sec must be a number",
		base + "host_memory: 1GiB\n" + base:     "key base is in line 1 already",
		base + "device_memory: 512MiB\n":        "device_memory is 512.0 MiB: the driver alone takes 1 GiB",
		"device_memory: 24GiB\n":                "host_memory, f32_flops_per_sec",
		strings.Replace(wholeMachine, "disk_read_bytes_per_sec: 6e9\n", "", 1):                                                       "disk_read_bytes_per_sec is missing",
		base + "attention_flops_per_sec_by_length: 7\n":                                                                              "must be a list of {sequence_len",
		base + "f32_attention_flops_per_sec_by_length: 7\n":                                                                          "f32_attention_flops_per_sec_by_length must be a list",
		base + "attention_flops_per_sec_by_length: [{sequence_len: 9}]\n":                                                            "must be a list of {sequence_len",
		base + "attention_flops_per_sec_by_length: [{sequence_len: 9, flops_per_sec: 1e9}, {sequence_len: 8, flops_per_sec: 1e9}]\n": "for a length of 8 after one of 9",
		"\xff\xfe":                  "UTF-16",
		strings.Repeat("[", 60_000): "more than 10000 times",

		base + "operations: fast\n":                                  "line 2: operations must be a list of {operation: gated_delta",
		base + "operations: [{operation: juggling}]\n":               "line 2: operations: operation: operation \"juggling\" is unknown",
		base + "operations: [{operation: loss, head_dim: wide}]\n":   "line 2: operations: head_dim: ",
		base + "operations: [{operation: loss, speed: 4}]\n":         "line 2: operations must be a list",
		base + "operations: [{operation: loss, flops_per_sec: 1}]\n": "line 2: operations: loss: 1 FLOPs and 0 bytes a second",
	} {
		_, err := ParseMachine([]byte(doc))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80q: %v, want %q", doc, err, want)
		}
	}
	if _, err := ReadMachine(filepath.Join(t.TempDir(), "none.yaml")); !os.IsNotExist(unwrapped(err)) {
		t.Error(err)
	}
}

// unwrapped is the innermost error.
func unwrapped(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || inner.Unwrap() == nil {
			return err
		}
		err = inner.Unwrap()
	}
}

func FuzzMachineFile(f *testing.F) {
	f.Add([]byte(wholeMachine))
	f.Add([]byte("base: dgx-2\nname: x\nhost_memory: 5e9GiB"))
	f.Add([]byte("attention_flops_per_sec_by_length: [{sequence_len: 1}, 2, [3]]"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		on, err := ParseMachine(doc)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		if err := on.Machine.Check(); err != nil || on.DeviceBytes <= 0 || on.HostBytes <= 0 {
			t.Errorf("%+v: %v", on, err)
		}
	})
}

// Several drives have rates of their own, which add up unless the file says what they have at once. Lists of
// a probe and of MachineText are read, and anything else is an error of a line.
func TestMachineFileWithDrives(t *testing.T) {
	const drives = "drives: [{read_bytes_per_sec: 7e9, write_bytes_per_sec: 2e9}, " +
		"{path: /mnt/b, read_bytes_per_sec: 3e9, write_bytes_per_sec: 1e9}]\n"
	on, err := ParseMachine([]byte(wholeMachine + drives))
	if err != nil {
		t.Fatal(err)
	}
	if m := on.Machine; len(m.Drives) != 2 || m.Drives[1].WriteBytesPerSec != 1e9 || m.DiskReadBytesPerSec != 6e9 {
		t.Errorf("%+v", m)
	}
	if on, err = ParseMachine([]byte("base: rtx4090-pc-256gb\n" + drives)); err != nil ||
		on.Machine.DiskReadBytesPerSec != 10e9 ||
		on.Machine.DiskWriteBytesPerSec != 3e9 || len(on.Request(nil, plan.Numerics{}).Drives) != 2 {
		t.Errorf("%+v, %v", on.Machine, err)
	}
	again, err := ParseMachine([]byte(MachineText(on)))
	if err != nil || !cmp.Equal(again.Machine.Drives, []plan.DriveRates{{ReadBytesPerSec: 7e9, WriteBytesPerSec: 2e9},
		{ReadBytesPerSec: 3e9, WriteBytesPerSec: 1e9}}) || again.Machine.DiskReadBytesPerSec != 10e9 {
		t.Errorf("%+v, %v", again.Machine, err)
	}
	one, err := ParseMachine([]byte("base: rtx4090-pc-256gb-2drives\ndisk_read_bytes_per_sec: 7e9\n"))
	if err != nil || one.Machine.Drives != nil {
		t.Errorf("with the rate of another disk: %+v, %v", one.Machine.Drives, err)
	}
	for _, bad := range []string{"drives: 2\n", "drives: [{read_bytes_per_sec: 7e9, write_bytes_per_sec: 2e9}]\n",
		"drives: [{read_bytes_per_sec: 7e9}, {read_bytes_per_sec: 7e9}]\n", "drives: [{x: 1}, {x: 2}]\n"} {
		if _, err := ParseMachine([]byte(wholeMachine + bad)); err == nil || !strings.Contains(err.Error(),
			"drives must be a list") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
