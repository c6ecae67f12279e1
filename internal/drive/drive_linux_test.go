package drive

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// tree is a made-up sysfs.
type tree struct {
	t   *testing.T
	sys string
}

func (f tree) file(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.sys, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f tree) link(name, to string) {
	f.t.Helper()
	path := filepath.Join(f.sys, name)
	to, err := filepath.Rel(filepath.Dir(path), filepath.Join(f.sys, to))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.Symlink(to, path)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// thermometer makes one of a driver, with a limit in one of two files.
func (f tree) thermometer(dir, driver, celsius, limitFile, limit string) {
	f.t.Helper()
	f.file(dir+"/name", driver)
	f.file(dir+"/temp1_input", celsius)
	if limitFile != "" {
		f.file(dir+"/"+limitFile, limit)
	}
}

// The thermometer of a directory's drive is found from a partition, an array, a mapping and a drive with several ways
// to it, where kernels of different ages put it.
func TestSensors(t *testing.T) {
	dir := t.TempDir()
	number, err := numberOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	const (
		pci  = "devices/pci0000:00/0000:00:01.1/0000:01:00.0"
		pci2 = "devices/pci0000:00/0000:00:01.2/0000:02:00.0"
	)
	block := "dev/block/" + number
	for _, c := range []struct {
		name string
		make func(f tree)
		want string // names of drives, with temperature and warning
	}{
		{"a partition", func(f tree) {
			f.file(pci+"/nvme/nvme0/nvme0n1/nvme0n1p2/partition", "2")
			f.thermometer(pci+"/nvme/nvme0/hwmon3", "nvme", "61850", "temp1_max", "84850")
			f.link(block, pci+"/nvme/nvme0/nvme0n1/nvme0n1p2")
		}, "nvme0n1 61.85 84.85"},
		{"an older kernel", func(f tree) {
			f.file(pci+"/nvme/nvme0/nvme0n1/size", "1")
			f.thermometer(pci+"/hwmon/hwmon3", "nvme", "40000", "temp1_crit", "90000")
			f.link(block, pci+"/nvme/nvme0/nvme0n1")
		}, "nvme0n1 40 85"},
		{"several ways to a drive", func(f tree) {
			f.file("devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/size", "1")
			f.thermometer(pci+"/nvme/nvme0/hwmon3", "nvme", "50000", "temp1_max", "80000")
			f.link("devices/virtual/nvme-subsystem/nvme-subsys0/nvme0", pci+"/nvme/nvme0")
			f.link(block, "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1")
		}, "nvme0n1 50 80"},
		{"a mapping on an array", func(f tree) {
			for i, at := range []string{pci, pci2} {
				n := string(rune('0' + i))
				f.file(at+"/nvme/nvme"+n+"/nvme"+n+"n1/nvme"+n+"n1p1/partition", "1")
				f.thermometer(at+"/nvme/nvme"+n+"/hwmon"+n, "nvme", n+"5000", "temp1_max", "80000")
				f.link("devices/virtual/block/md0/slaves/nvme"+n+"n1p1", at+"/nvme/nvme"+n+"/nvme"+n+"n1/nvme"+n+"n1p1")
			}
			f.link("devices/virtual/block/dm-0/slaves/md0", "devices/virtual/block/md0")
			f.link(block, "devices/virtual/block/dm-0")
		}, "nvme0n1 5 80, nvme1n1 15 80"},
		{"a SATA drive", func(f tree) {
			const at = "devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
			f.file(at+"/block/sda/sda1/partition", "1")
			f.thermometer(at+"/hwmon/hwmon2", "drivetemp", "33000", "temp1_max", "60000")
			f.link(block, at+"/block/sda/sda1")
		}, "sda 33 60"},
		{"another's thermometer", func(f tree) {
			f.file(pci+"/virtio0/block/vda/size", "1")
			f.thermometer(pci+"/hwmon/hwmon2", "coretemp", "33000", "temp1_max", "60000")
			f.link(block, pci+"/virtio0/block/vda")
		}, ""},
		{"no drive that is known", func(f tree) { f.file("block/none", "") }, ""},
		{"no limit", func(f tree) {
			f.file(pci+"/nvme/nvme0/nvme0n1/size", "1")
			f.thermometer(pci+"/nvme/nvme0/hwmon3", "nvme", "40000", "", "")
			f.link(block, pci+"/nvme/nvme0/nvme0n1")
		}, "nvme0n1 no such file"},
		{"a limit of nothing", func(f tree) {
			f.file(pci+"/nvme/nvme0/nvme0n1/size", "1")
			f.thermometer(pci+"/nvme/nvme0/hwmon3", "nvme", "40000", "temp1_max", "0")
			f.file(pci+"/nvme/nvme0/hwmon3/temp1_crit", "0")
			f.link(block, pci+"/nvme/nvme0/nvme0n1")
		}, "nvme0n1 no temperature that it warns of"},
		{"no number", func(f tree) {
			f.file(pci+"/nvme/nvme0/nvme0n1/size", "1")
			f.thermometer(pci+"/nvme/nvme0/hwmon3", "nvme", "hot", "temp1_max", "80000")
			f.link(block, pci+"/nvme/nvme0/nvme0n1")
		}, "nvme0n1 invalid syntax"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := tree{t, t.TempDir()}
			c.make(f)
			var want []string
			if c.want != "" {
				want = strings.Split(c.want, ", ")
			}
			found := Sensors(f.sys, dir)
			if len(found) != len(want) {
				t.Fatalf("found %v, want %v", found, want)
			}
			for i, s := range found {
				name, what, _ := strings.Cut(want[i], " ")
				r, err := s.Read()
				got := ""
				if err != nil {
					got = err.Error()
				} else {
					got = degrees(r)
				}
				if s.Name != name || !strings.HasSuffix(got, what) && !strings.Contains(got, what) {
					t.Errorf("%s: %s, want %s", s.Name, got, want[i])
				}
			}
		})
	}
	if found := Sensors(t.TempDir(), filepath.Join(dir, "missing")); found != nil {
		t.Errorf("of a directory that is not there: %v", found)
	}
}

func degrees(r Reading) string {
	return strconv.FormatFloat(r.Celsius, 'g', -1, 64) + " " + strconv.FormatFloat(r.WarnCelsius, 'g', -1, 64)
}
