package plan

import (
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// Machine has the rates of the hardware for the simulation, as `millrace probe` has measured them: work that arrives,
// not what a data sheet promises.
type Machine struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"` // device.Info.Kind of what was measured, whose rates other devices of it have

	F32FLOPsPerSec       float64 `json:"f32_flops_per_sec"`            // matrix products
	BF16FLOPsPerSec      float64 `json:"bf16_flops_per_sec"`           // matrix products
	AttentionFLOPsPerSec float64 `json:"attention_flops_per_sec"`      // forward and backward; where there is a list, of 2,048
	DeviceOpsPerSec      float64 `json:"device_ops_per_sec,omitempty"` // operations with next to no work; 0 where it was not measured
	DeviceBytesPerSec    float64 `json:"device_bytes_per_sec"`         // read and written by element-wise operations
	UploadBytesPerSec    float64 `json:"upload_bytes_per_sec"`
	DownloadBytesPerSec  float64 `json:"download_bytes_per_sec"`
	AdamWBytesPerSec     float64 `json:"adamw_bytes_per_sec"` // read and written by the host's update
	HostBytesPerSec      float64 `json:"host_bytes_per_sec"`  // read and written by a host copy
	// AdamW8BytesPerSec is AdamWBytesPerSec of an update with moments in 8 bits, which computes more for each byte; 0:
	// it was not measured, and UpdateBytesPerSec takes a share of AdamWBytesPerSec.
	AdamW8BytesPerSec float64 `json:"adamw8_bytes_per_sec,omitempty"`
	// AttentionByLength is attention's rate at several lengths of sequences, which rise; empty where it was measured at
	// one, or not at all.
	AttentionByLength []AttentionRate `json:"attention_flops_per_sec_by_length,omitempty"`

	// Rates of fp32 where they have figures of their own; without them those above, of bf16, stand for both types.
	F32AttentionFLOPsPerSec float64         `json:"f32_attention_flops_per_sec,omitempty"`
	F32AttentionByLength    []AttentionRate `json:"f32_attention_flops_per_sec_by_length,omitempty"`
	F32DeviceBytesPerSec    float64         `json:"f32_device_bytes_per_sec,omitempty"` // of element-wise operations

	// Operations are the rates of classes of operations that have rates of their own; see Operation.On.
	Operations []OperationRate `json:"operations,omitempty"`

	// Rates of things that happen at once, which slow each other down; 0 where they were not measured, as on devices
	// that compute on host memory. Then nothing slows down.
	DuplexUploadBytesPerSec     float64 `json:"duplex_upload_bytes_per_sec,omitempty"` // while the device is read as well
	DuplexDownloadBytesPerSec   float64 `json:"duplex_download_bytes_per_sec,omitempty"`
	AdamWUnderCopiesBytesPerSec float64 `json:"adamw_under_copies_bytes_per_sec,omitempty"` // AdamW, during both copies
	// Both copies during AdamW.
	UploadUnderAdamWBytesPerSec   float64 `json:"upload_under_adamw_bytes_per_sec,omitempty"`
	DownloadUnderAdamWBytesPerSec float64 `json:"download_under_adamw_bytes_per_sec,omitempty"`
	DeviceCopyBytesPerSec         float64 `json:"device_copy_bytes_per_sec,omitempty"` // of a copy on the device; shown
	// PeerCopyBytesPerSec is the rate of copies from one device to another, in one direction; 0: devices do not copy
	// from each other, or it was not measured.
	PeerCopyBytesPerSec float64 `json:"peer_copy_bytes_per_sec,omitempty"`
	// NetworkBytesPerSec bounds the bytes that arrive at a host from others while as many leave it; 0: the rate is not
	// known, and messages are taken to last no time.
	NetworkBytesPerSec float64 `json:"network_bytes_per_sec,omitempty"`
	// HostMemoryBytesPerSec is the rate of the host's memory, which all that reads and writes it shares; 0: the rate
	// that one device's copies and an update had together.
	HostMemoryBytesPerSec float64 `json:"host_memory_bytes_per_sec,omitempty"`

	// Of the disk, as the disk tier uses it; 0 where it was not measured.
	DiskReadBytesPerSec  float64 `json:"disk_read_bytes_per_sec,omitempty"`
	DiskWriteBytesPerSec float64 `json:"disk_write_bytes_per_sec,omitempty"`
	DiskPath             string  `json:"disk_path,omitempty"` // a directory on the file system that was measured
	// Drives are several drives that the disk consists of; the rates above are those of all of them at once. Empty: it is
	// one.
	Drives []DriveRates `json:"drives,omitempty"`

	// ProbeLoad is the load of the machine's cores by other programs when the rates were measured, as the mean number of threads that
	// ran or waited in the minute before; nil: it is not known.
	ProbeLoad *float64 `json:"probe_load,omitempty"`

	// DeviceMemoryBytes and HostMemoryBytes are the memory of a GPU and of its host where they were measured, so that the
	// file can be planned for elsewhere; 0 if they were not.
	DeviceMemoryBytes int64 `json:"device_memory,omitempty"`
	HostMemoryBytes   int64 `json:"host_memory,omitempty"`

	// Of a save, as a run makes it: state from memory in one piece after the other and, for state on disk, the seconds
	// that a file takes to be made durable, linked and replaced. On a device that computes on the host's cores, while
	// those are busy. 0: not measured.
	SaveBytesPerSec float64 `json:"save_bytes_per_sec,omitempty"`
	SaveLinkSeconds float64 `json:"save_link_sec,omitempty"`
}

// AttentionRate is a rate of attention for sequences of one length.
type AttentionRate struct {
	SequenceLen int     `json:"sequence_len"`
	FLOPsPerSec float64 `json:"flops_per_sec"`
}

// AttentionFLOPsPerSecAt is attention's rate in a compute type for sequences of a length: between two lengths that were
// measured on a line over the logarithm of the length, beyond them that of the nearest.
func (m *Machine) AttentionFLOPsPerSecAt(compute tensor.DType, sequenceLen int) float64 {
	one, rates := m.AttentionFLOPsPerSec, m.AttentionByLength
	if compute == tensor.F32 && m.F32AttentionFLOPsPerSec > 0 {
		one, rates = m.F32AttentionFLOPsPerSec, m.F32AttentionByLength
	}
	if len(rates) == 0 {
		return one
	}
	return between(sequenceLen, rates, func(r AttentionRate) (int, float64) { return r.SequenceLen, r.FLOPsPerSec })
}

// updates8Share is the share of the rate of updates that those with moments in 8 bits are taken to have where they were
// not measured: 49 of 141 GB/s on the host of an H100 with 8 cores (benchmarks/gpu), 13 of 39 on two cores of the same
// kind.
const updates8Share = 0.35

// updates4Share is the share of the parameters a second of updates with moments in 8 bits that those with some in 4
// bits are taken to have: 0.76 to 0.88 in the caches of a core of a Xeon.
const updates4Share = 0.8

// UpdateBytesPerSec is the rate of the host's updates with moments of a precision. Updates with moments in codes are
// bound by arithmetic, so that those of fewer bits have a rate by their parameters.
func (m *Machine) UpdateBytesPerSec(moments optim.Moments) float64 {
	if !moments.Coded() {
		return m.AdamWBytesPerSec
	}
	rate := m.AdamW8BytesPerSec
	if rate == 0 {
		rate = updates8Share * m.AdamWBytesPerSec
	}
	if moments == optim.Dynamic8 {
		return rate
	}
	return updates4Share * rate * updatedBytes(moments) / updatedBytes(optim.Dynamic8)
}

// updatedBytes counts the bytes that an update of a parameter with a split master reads and writes.
func updatedBytes(moments optim.Moments) float64 {
	scheme := optim.Scheme{Master: optim.Split, Moments: moments}
	return scheme.BytesPerParam(true) + scheme.BytesPerParam(false)
}

// ElementBytesPerSec is the rate of element-wise operations in a compute type.
func (m *Machine) ElementBytesPerSec(compute tensor.DType) float64 {
	if compute == tensor.F32 && m.F32DeviceBytesPerSec > 0 {
		return m.F32DeviceBytesPerSec
	}
	return m.DeviceBytesPerSec
}

// peerBytesPerSec is the rate of copies from one device to another: where it was not measured, that of the host's link.
func (m *Machine) peerBytesPerSec() float64 {
	if m.PeerCopyBytesPerSec > 0 {
		return m.PeerCopyBytesPerSec
	}
	return min(m.UploadBytesPerSec, m.DownloadBytesPerSec)
}

// peersHaveLinks reports whether devices have links to each other, besides that to the host: copies from one to
// another are then faster than that one is.
func (m *Machine) peersHaveLinks() bool { return m.PeerCopyBytesPerSec > m.UploadBytesPerSec }

// memoryBytesPerSec is the rate of the host's memory that copies of all devices and updates share.
func (m *Machine) memoryBytesPerSec() float64 {
	if m.HostMemoryBytesPerSec > 0 {
		return m.HostMemoryBytesPerSec
	}
	together := m.AdamWUnderCopiesBytesPerSec + m.UploadUnderAdamWBytesPerSec + m.DownloadUnderAdamWBytesPerSec
	return max(together, m.AdamWBytesPerSec, m.HostBytesPerSec, m.UploadBytesPerSec, m.DownloadBytesPerSec)
}

// FasterType is the compute type whose products are faster, with how many times as fast it computes products, and
// attention of sequences of 2,048; ok is false where they differ by less than FasterBy, or attention was measured in
// one type.
func (m *Machine) FasterType() (compute tensor.DType, products, attention float64, ok bool) {
	compute, products = tensor.BF16, m.BF16FLOPsPerSec/m.F32FLOPsPerSec
	attention = m.AttentionFLOPsPerSec / m.F32AttentionFLOPsPerSec
	if products < 1 {
		compute, products, attention = tensor.F32, 1/products, 1/attention
	}
	return compute, products, attention, m.F32AttentionFLOPsPerSec > 0 && products >= 1+FasterBy
}

// FasterBy is the share of its time that a type must save to be worth a word.
const FasterBy = 0.05

// MatMulFLOPsPerSec is the rate for a compute type.
func (m *Machine) MatMulFLOPsPerSec(compute tensor.DType) float64 {
	if compute == tensor.F32 {
		return m.F32FLOPsPerSec
	}
	return m.BF16FLOPsPerSec
}

// Check refuses a machine with a rate that nothing can have.
func (m *Machine) Check() error {
	for name, rate := range map[string]float64{"f32_flops_per_sec": m.F32FLOPsPerSec, "bf16_flops_per_sec": m.BF16FLOPsPerSec,
		"attention_flops_per_sec": m.AttentionFLOPsPerSec, "device_bytes_per_sec": m.DeviceBytesPerSec,
		"upload_bytes_per_sec": m.UploadBytesPerSec, "download_bytes_per_sec": m.DownloadBytesPerSec,
		"adamw_bytes_per_sec": m.AdamWBytesPerSec, "host_bytes_per_sec": m.HostBytesPerSec} {
		if !(rate > 0) || rate > 1e20 {
			return fmt.Errorf("machine %q: %s is %v", m.Name, name, rate)
		}
	}
	for name, list := range map[string][]AttentionRate{"attention_flops_per_sec_by_length": m.AttentionByLength,
		"f32_attention_flops_per_sec_by_length": m.F32AttentionByLength} {
		last := 0
		for _, r := range list {
			if r.SequenceLen <= last || !(r.FLOPsPerSec > 0) || r.FLOPsPerSec > 1e20 {
				return fmt.Errorf("machine %q: %s has %v for a length of %d after one of %d", m.Name, name, r.FLOPsPerSec,
					r.SequenceLen, last)
			}
			last = r.SequenceLen
		}
	}
	for i, d := range m.Drives {
		if !(d.ReadBytesPerSec > 0) || !(d.WriteBytesPerSec > 0) || d.ReadBytesPerSec > 1e20 || d.WriteBytesPerSec > 1e20 {
			return fmt.Errorf("machine %q: drive %d of drives reads %v and writes %v bytes a second", m.Name, i+1,
				d.ReadBytesPerSec, d.WriteBytesPerSec)
		}
	}
	for _, r := range m.Operations {
		if err := r.Check(); err != nil {
			return fmt.Errorf("machine %q: operations: %w", m.Name, err)
		}
	}
	for name, rate := range map[string]float64{"disk_read_bytes_per_sec": m.DiskReadBytesPerSec, "disk_write_bytes_per_sec": m.DiskWriteBytesPerSec,
		"save_bytes_per_sec": m.SaveBytesPerSec, "save_link_sec": m.SaveLinkSeconds,
		"duplex_upload_bytes_per_sec": m.DuplexUploadBytesPerSec, "duplex_download_bytes_per_sec": m.DuplexDownloadBytesPerSec,
		"device_ops_per_sec": m.DeviceOpsPerSec, "adamw_under_copies_bytes_per_sec": m.AdamWUnderCopiesBytesPerSec,
		"upload_under_adamw_bytes_per_sec":   m.UploadUnderAdamWBytesPerSec,
		"download_under_adamw_bytes_per_sec": m.DownloadUnderAdamWBytesPerSec,
		"device_copy_bytes_per_sec":          m.DeviceCopyBytesPerSec,
		"peer_copy_bytes_per_sec":            m.PeerCopyBytesPerSec,
		"adamw8_bytes_per_sec":               m.AdamW8BytesPerSec,
		"host_memory_bytes_per_sec":          m.HostMemoryBytesPerSec,
		"network_bytes_per_sec":              m.NetworkBytesPerSec,
		"f32_attention_flops_per_sec":        m.F32AttentionFLOPsPerSec, "f32_device_bytes_per_sec": m.F32DeviceBytesPerSec} {
		if !(rate >= 0) || rate > 1e20 {
			return fmt.Errorf("machine %q: %s is %v", m.Name, name, rate)
		}
	}
	return nil
}

// ReadMachine reads a machine that WriteMachine wrote.
func ReadMachine(path string) (Machine, error) {
	var m Machine
	data, err := vfs.ReadOwn(path, 1<<20)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("machine file %s: %w; run `millrace probe` again", path, err)
	}
	if err := m.Check(); err != nil {
		return m, fmt.Errorf("machine file %s: %w; run `millrace probe` again", path, err)
	}
	return m, nil
}

// WriteMachine writes the machine file, whole or not at all.
func WriteMachine(path string, m Machine) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return vfs.ReplaceFile(path, append(data, '\n'))
}
