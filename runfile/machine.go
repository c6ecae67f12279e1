package runfile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
)

// machineSizes are the keys of a machine file that have a size. The rates of plan.Machine have the names that its JSON
// has.
var machineSizes = []string{"device_memory", "host_memory", "disk_space", "rated_writes"}

// probeKeys lists the keys by which a probe says what it measured. A machine file may have them, and they set nothing.
var probeKeys = []string{"disk_path", "kind"}

// machineFile is a document that is read.
type machineFile struct {
	on    plan.NamedMachine
	rates map[string]reflect.Value // fields of on.Machine by their keys
	given map[string]bool
	sizes map[string]int64
	errs  lineErrors
}

// ReadMachine reads a file that describes a machine with GPUs of one kind: their number, sizes, and rates of
// plan.Machine, over those of the named machine in base, if there is one. It is YAML or JSON; what `millrace probe`
// keeps is one.
func ReadMachine(path string) (plan.NamedMachine, error) {
	doc, err := ReadFile(path)
	if err != nil {
		return plan.NamedMachine{}, fmt.Errorf("machine file: %w", err)
	}
	named, err := ParseMachine(doc)
	if err != nil {
		return plan.NamedMachine{}, fmt.Errorf("machine file %s: %w", path, err)
	}
	named.Machine.Name = fmt.Sprintf("%s (%s)", cmp.Or(named.Name, "a machine"), path)
	named.Sources = slices.Insert(named.Sources, 0, "rates and sizes of the machine: "+path)
	return named, nil
}

// ParseMachine reads a machine file from its text. All that is wrong with its lines is told at once.
func ParseMachine(doc []byte) (plan.NamedMachine, error) {
	doc, err := plainText(doc)
	if err != nil {
		return plan.NamedMachine{}, err
	}
	body, err := parseYAML(doc)
	if err != nil {
		return plan.NamedMachine{}, err
	}
	values := pairs(body)
	if values == nil {
		return plan.NamedMachine{}, lineErrors{{text: "this is not a mapping of keys and values; name another file, " +
			"or a machine"}}
	}
	f := &machineFile{given: map[string]bool{}, sizes: map[string]int64{}}
	f.base(values)
	f.rates = ratesOf(&f.on.Machine)
	for _, p := range values {
		f.read(p)
	}
	if len(f.errs) > 0 {
		return plan.NamedMachine{}, f.errs
	}
	return f.finish()
}

// ratesOf are the fields of a machine that are rates, by the keys that its JSON has.
func ratesOf(m *plan.Machine) map[string]reflect.Value {
	all := map[string]reflect.Value{}
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Float64 {
			key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			all[key] = v.Field(i)
		}
	}
	return all
}

func (f *machineFile) fail(n ast.Node, format string, args ...any) {
	if len(f.errs) < mostErrors {
		f.errs = append(f.errs, lineError{line: lineOf(n.GetToken()), text: fmt.Sprintf(format, args...)})
	}
}

// base begins with the named machine that the file names.
func (f *machineFile) base(values []*ast.MappingValueNode) {
	for _, p := range values {
		if keyText(p.Key) != "base" {
			continue
		}
		name, _ := scalarText(p.Value)
		on, err := plan.FindMachine(name)
		if err != nil {
			f.fail(p.Key, "base: %v", err)
		}
		f.on = on
	}
}

// read reads a key and its value.
func (f *machineFile) read(p *ast.MappingValueNode) {
	key := keyText(p.Key)
	text, isScalar := scalarText(p.Value)
	rate, isRate := f.rates[key]
	f.given[key] = true
	switch {
	case slices.Contains(probeKeys, key):
	case !slices.Contains(f.keys(), key):
		f.unknown(key, lineOf(p.Key.GetToken()))
	case key == "base":
	case key == "attention_flops_per_sec_by_length":
		f.on.Machine.AttentionByLength = f.attention(key, p.Value)
	case key == "f32_attention_flops_per_sec_by_length":
		f.on.Machine.F32AttentionByLength = f.attention(key, p.Value)
	case key == "operations":
		f.on.Machine.Operations = f.operations(p.Value)
	case key == "drives":
		f.on.Machine.Drives = f.drives(p.Value)
	case !isScalar:
		f.fail(p.Key, "%s must be one value", key)
	case key == "name":
		f.on.Name = text
		f.on.Device.Name = text
	case key == "devices":
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > device.MaxDevices {
			f.fail(p.Key, "devices must be a number from 1 to %d, not %s", device.MaxDevices, text)
		}
		f.on.Devices = n
	case key == "network":
		rate, err := plan.Network(text)
		if err != nil {
			f.fail(p.Key, "network: %v; or give network_bytes_per_sec", err)
		}
		f.on.Machine.NetworkBytesPerSec = rate
	case isRate:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x > 0) || math.IsInf(x, 0) {
			f.fail(p.Key, "%s must be a number above 0, such as %s, not %s", key, exampleOf(key), text)
			return
		}
		rate.SetFloat(x)
	case slices.Contains(machineSizes, key):
		size, err := ParseBytes(text)
		if plain, errPlain := strconv.ParseInt(text, 10, 64); errPlain == nil && plain > 0 { // as the probe writes it
			size, err = Bytes{N: plain}, nil
		}
		if err != nil || size.N <= 0 {
			f.fail(p.Key, "%s must be a size, such as 24GiB, not %s", key, text)
			return
		}
		f.sizes[key] = size.N
	}
}

// unknown notes a key that no machine file has.
func (f *machineFile) unknown(key string, at int) {
	known := f.keys()
	if len(f.errs) < mostErrors {
		advice := cmp.Or(spelling.Question(key, known), ": keys are "+strings.Join(known, ", "))
		f.errs = append(f.errs, lineError{at, advice, key})
	}
}

// exampleOf is a value that a rate may have.
func exampleOf(key string) string {
	switch {
	case strings.HasSuffix(key, "flops_per_sec"):
		return "150e12"
	case strings.HasSuffix(key, "ops_per_sec"):
		return "250e3"
	case strings.HasSuffix(key, "_sec") && !strings.HasSuffix(key, "_per_sec"):
		return "0.002"
	}
	return "25e9"
}

// keys are all that a machine file may have, in the order of what is written.
func (f *machineFile) keys() []string {
	keys := append([]string{"base", "name", "devices", "network"}, machineSizes...)
	t := reflect.TypeFor[plan.Machine]()
	for i := range t.NumField() {
		key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if !slices.Contains(keys, key) && !slices.Contains(probeKeys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// attention reads the rates of attention at several lengths of sequences.
func (f *machineFile) attention(key string, n ast.Node) (rates []plan.AttentionRate) {
	want := key + " must be a list of {sequence_len: 2048, flops_per_sec: 50e12}"
	list, ok := n.(*ast.SequenceNode)
	if !ok || len(list.Values) > maxLengths {
		f.fail(n, "%s", want)
		return nil
	}
	for _, e := range list.Values {
		var rate plan.AttentionRate
		entries := pairs(e)
		for _, p := range entries {
			text, _ := scalarText(p.Value)
			switch keyText(p.Key) {
			case "sequence_len":
				rate.SequenceLen, _ = strconv.Atoi(text)
			case "flops_per_sec":
				rate.FLOPsPerSec, _ = strconv.ParseFloat(text, 64)
			default:
				f.fail(p.Key, "%s", want)
			}
		}
		if rate.SequenceLen <= 0 || !(rate.FLOPsPerSec > 0) || math.IsInf(rate.FLOPsPerSec, 0) {
			f.fail(e, "%s", want)
		}
		rates = append(rates, rate)
	}
	return rates
}

// operations reads the rates of classes of operations.
func (f *machineFile) operations(n ast.Node) (rates []plan.OperationRate) {
	const want = "operations must be a list of {operation: gated_delta, compute: bf16, head_dim: 128, " +
		"flops_per_sec: 20e12}"
	list, ok := n.(*ast.SequenceNode)
	if !ok || len(list.Values) > maxOperations {
		f.fail(n, "%s", want)
		return nil
	}
	for _, e := range list.Values {
		var rate plan.OperationRate
		var err error
		for _, p := range pairs(e) {
			text, _ := scalarText(p.Value)
			switch keyText(p.Key) {
			case "operation":
				err = rate.Operation.UnmarshalText([]byte(text))
			case "compute":
				rate.Compute = text
			case "head_dim":
				rate.HeadDim, err = strconv.Atoi(text)
			case "sequence_len":
				rate.SequenceLen, err = strconv.Atoi(text)
			case "rows":
				rate.Rows, err = strconv.Atoi(text)
			case "flops_per_sec":
				rate.FLOPsPerSec, err = strconv.ParseFloat(text, 64)
			case "bytes_per_sec":
				rate.BytesPerSec, err = strconv.ParseFloat(text, 64)
			default:
				f.fail(p.Key, "%s", want)
			}
			if err != nil {
				f.fail(p.Key, "operations: %s: %v; %s", keyText(p.Key), err, want)
			}
		}
		if err := rate.Check(); err != nil {
			f.fail(e, "operations: %v; %s", err, want)
		}
		rates = append(rates, rate)
	}
	return rates
}

// drives reads the rates of several drives, each alone.
func (f *machineFile) drives(n ast.Node) (drives []plan.DriveRates) {
	const want = "drives must be a list of at least two of {read_bytes_per_sec: 7e9, write_bytes_per_sec: 2e9}"
	list, ok := n.(*ast.SequenceNode)
	if !ok || len(list.Values) < 2 || len(list.Values) > plan.MaxDrives {
		f.fail(n, "%s", want)
		return nil
	}
	for _, e := range list.Values {
		var d plan.DriveRates
		for _, p := range pairs(e) {
			text, _ := scalarText(p.Value)
			switch keyText(p.Key) {
			case "read_bytes_per_sec":
				d.ReadBytesPerSec, _ = strconv.ParseFloat(text, 64)
			case "write_bytes_per_sec":
				d.WriteBytesPerSec, _ = strconv.ParseFloat(text, 64)
			case "path": // as the probe writes it
			default:
				f.fail(p.Key, "%s", want)
			}
		}
		if !(d.ReadBytesPerSec > 0 && d.WriteBytesPerSec > 0) || math.IsInf(d.ReadBytesPerSec+d.WriteBytesPerSec, 0) {
			f.fail(e, "%s", want)
		}
		drives = append(drives, d)
	}
	return drives
}

// addDrives has the rates of the disk follow from those of its drives, where the file does not have them, and leaves
// the drives of a base out where the file describes another disk.
func (f *machineFile) addDrives() {
	m := &f.on.Machine
	var read, write float64
	for _, d := range m.Drives {
		read, write = read+d.ReadBytesPerSec, write+d.WriteBytesPerSec
	}
	given := f.given["disk_read_bytes_per_sec"] || f.given["disk_write_bytes_per_sec"]
	if !f.given["drives"] {
		if given {
			m.Drives = nil
		}
		return
	}
	if !f.given["disk_read_bytes_per_sec"] {
		m.DiskReadBytesPerSec = read
	}
	if !f.given["disk_write_bytes_per_sec"] {
		m.DiskWriteBytesPerSec = write
	}
}

// maxOperations bounds the rates of operations.
const maxOperations = 1000

// maxLengths bounds the lengths that attention was measured at.
const maxLengths = 100

// togetherRates are of things that happen at once.
var togetherRates = []string{"duplex_upload_bytes_per_sec", "duplex_download_bytes_per_sec",
	"adamw_under_copies_bytes_per_sec", "upload_under_adamw_bytes_per_sec", "download_under_adamw_bytes_per_sec"}

// finish fills in what follows from the rest, and refuses what is not a machine.
func (f *machineFile) finish() (plan.NamedMachine, error) {
	on, m := &f.on, &f.on.Machine
	hasBase := f.given["base"]
	var missing []string
	need := func(key string, has bool) {
		if !has {
			missing = append(missing, key)
		}
	}
	need("device_memory", hasBase || f.sizes["device_memory"] > 0)
	need("host_memory", hasBase || f.sizes["host_memory"] > 0)
	for _, key := range f.keys() {
		if rate, isRate := f.rates[key]; isRate && isRequiredRate(key) {
			need(key, rate.Float() > 0)
		}
	}
	f.addDrives()
	if f.sizes["disk_space"] > 0 {
		need("disk_read_bytes_per_sec", m.DiskReadBytesPerSec > 0)
		need("disk_write_bytes_per_sec", m.DiskWriteBytesPerSec > 0)
	}
	if len(missing) > 0 {
		return plan.NamedMachine{}, fmt.Errorf("%s missing: give them, or begin with a machine that has them, such as base: "+
			"rtx4090-pc-256gb; a device that computes on the host's memory cannot be described", areMissing(missing))
	}
	gpu := device.GPU()
	gpu.Name = cmp.Or(on.Device.Name, "a GPU")
	gpu.MemoryBytes = cmp.Or(f.sizes["device_memory"], on.Device.MemoryBytes)
	on.Device = gpu
	on.SetSizes(f.sizes["host_memory"], f.sizes["disk_space"])
	if on.DeviceBytes <= 0 {
		return plan.NamedMachine{}, fmt.Errorf("device_memory is %s: the driver alone takes 1 GiB; give more",
			plan.FormatBytes(on.Device.MemoryBytes))
	}
	on.Devices = max(on.Devices, 1)
	on.RatedWriteBytes = cmp.Or(f.sizes["rated_writes"], on.RatedWriteBytes)
	if m.DeviceOpsPerSec == 0 {
		m.DeviceOpsPerSec = plan.GPUOpsPerSec
	}
	f.shareRAM(hasBase)
	if err := m.Check(); err != nil {
		return plan.NamedMachine{}, err
	}
	return *on, nil
}

// isRequiredRate reports whether a plan cannot do without a rate. Attention and element-wise operations in fp32 have
// the rates of bf16 where they have none of their own, and updates with moments in 8 bits that of updates in fp32.
func isRequiredRate(key string) bool {
	switch key {
	case "f32_attention_flops_per_sec", "f32_device_bytes_per_sec", "adamw8_bytes_per_sec":
		return false
	}
	for _, part := range []string{"duplex", "under", "disk", "save", "ops_per_sec", "copy", "host_memory",
		"network"} {
		if strings.Contains(key, part) && key != "adamw_bytes_per_sec" && !strings.HasSuffix(key, "flops_per_sec") {
			return false
		}
	}
	return true
}

// areMissing names keys that are not there: "a and b are".
func areMissing(keys []string) string {
	if len(keys) == 1 {
		return keys[0] + " is"
	}
	return strings.Join(keys[:len(keys)-1], ", ") + " and " + keys[len(keys)-1] + " are"
}

// shareRAM fills in the rates of what happens at once that the file does not have, from the others. Those of a base
// stay where the file changes none of the others.
func (f *machineFile) shareRAM(hasBase bool) {
	changed := false
	for _, key := range []string{"upload_bytes_per_sec", "download_bytes_per_sec", "adamw_bytes_per_sec",
		"host_bytes_per_sec"} {
		changed = changed || f.given[key]
	}
	if hasBase && !changed {
		return
	}
	if f.given["adamw_bytes_per_sec"] && !f.given["adamw8_bytes_per_sec"] { // a base's is no faster than what the file has
		f.on.Machine.AdamW8BytesPerSec = min(f.on.Machine.AdamW8BytesPerSec, f.on.Machine.AdamWBytesPerSec)
	}
	derived := f.on.Machine
	derived.ShareRAM(derived.HostBytesPerSec)
	from := ratesOf(&derived)
	for _, key := range togetherRates {
		if !f.given[key] {
			f.rates[key].SetFloat(from[key].Float())
		}
	}
}

// MachineText is a machine as a machine file, to be edited.
func MachineText(on plan.NamedMachine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# A machine for millrace plan --machine FILE; docs/plan.md explains the keys. Rates are FLOP/s,\n"+
		"# bytes/s and operations/s, of work that arrives. The rates of what happens at once (duplex, under) follow\n"+
		"# from the others where they are left out.\nname: %s\n", strconv.Quote(on.Device.Name))
	if on.Devices > 1 {
		fmt.Fprintf(&b, "devices: %d\n", on.Devices)
	}
	for _, size := range []struct {
		key   string
		bytes int64
	}{{"device_memory", on.Device.MemoryBytes}, {"host_memory", on.HostMemory()}, {"disk_space", on.DiskSpace()},
		{"rated_writes", on.RatedWriteBytes}} {
		if size.bytes > 0 {
			fmt.Fprintf(&b, "%s: %dB\n", size.key, size.bytes)
		}
	}
	derived := on.Machine
	derived.ShareRAM(derived.HostBytesPerSec)
	rates, follow := ratesOf(&on.Machine), ratesOf(&derived)
	for _, key := range (&machineFile{}).keys() {
		rate, isRate := rates[key]
		follows := slices.Contains(togetherRates, key) && math.Abs(rate.Float()-follow[key].Float()) < 1
		if isRate && rate.Float() > 0 && !follows {
			fmt.Fprintf(&b, "%s: %s\n", key, strconv.FormatFloat(rate.Float(), 'g', 6, 64))
		}
	}
	if len(on.Machine.Drives) > 0 {
		b.WriteString("drives:\n")
	}
	for _, d := range on.Machine.Drives {
		fmt.Fprintf(&b, "- {read_bytes_per_sec: %s, write_bytes_per_sec: %s}\n",
			strconv.FormatFloat(d.ReadBytesPerSec, 'g', 6, 64), strconv.FormatFloat(d.WriteBytesPerSec, 'g', 6, 64))
	}
	if len(on.Machine.Operations) > 0 {
		b.WriteString("operations:\n")
	}
	for _, r := range on.Machine.Operations {
		text, err := json.Marshal(r) // YAML as well
		if err != nil {
			panic(err) // it has names and numbers
		}
		fmt.Fprintf(&b, "- %s\n", text)
	}
	return b.String()
}
