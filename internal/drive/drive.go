// Package drive reads what Linux tells every user of the drives on which a directory is: how hot they are, and from
// which temperature on their makers warn.
//
//   - [Sensors] finds the thermometers of a directory's drives in sysfs. Systems without sysfs, drives without a
//     thermometer, and file systems without a drive that is known have none.
//   - [Sensor.Read] reads one.
//
// The kernel's driver nvme has a thermometer for each drive since Linux 5.5, and the module drivetemp for SATA drives.
// Nothing here needs a privilege, and nothing is sent to a drive but the kernel's own question for its temperature.
package drive

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// SysFS names the directory in which Linux shows devices as files.
const SysFS = "/sys"

// Sensor is the thermometer of a drive.
type Sensor struct {
	Name string // of the drive, such as nvme0n1
	dir  string // in hwmon
}

// drivers are the names that thermometers of drives have.
var drivers = []string{"nvme", "drivetemp"}

// Sensors lists the thermometers of the drives with a directory that is there. sys is [SysFS], or stands for it in a
// test.
func Sensors(sys, dir string) []Sensor {
	number, err := numberOf(dir)
	if err != nil {
		return nil
	}
	return sensorsOf(sys, filepath.Join(sys, "dev", "block", number))
}

// sensorsOf lists those of a block device: a drive, a partition, or an array or a mapping of such.
func sensorsOf(sys, block string) (all []Sensor) {
	at, err := filepath.EvalSymlinks(block)
	if err != nil {
		return nil
	}
	parts, err := os.ReadDir(filepath.Join(at, "slaves"))
	if err == nil && len(parts) > 0 {
		for _, part := range parts {
			for _, s := range sensorsOf(sys, filepath.Join(at, "slaves", part.Name())) {
				if !slices.Contains(all, s) {
					all = append(all, s)
				}
			}
		}
		return all
	}
	root, err := filepath.EvalSymlinks(sys)
	if err != nil {
		return nil
	}
	name := filepath.Base(at)
	if _, err := os.Stat(filepath.Join(at, "partition")); err == nil {
		name = filepath.Base(filepath.Dir(at))
	}
	for ; at != root && at != filepath.Dir(at); at = filepath.Dir(at) {
		for _, place := range places {
			found, _ := filepath.Glob(filepath.Join(at, place, "temp1_input")) // the pattern is a good one
			for _, f := range found {
				if driver, err := text(filepath.Dir(f), "name"); err == nil && slices.Contains(drivers, driver) {
					return []Sensor{{name, filepath.Dir(f)}}
				}
			}
		}
	}
	return nil
}

// places are the directories in hwmon of a device, or of the controllers of a drive with several ways to it.
var places = []string{"hwmon*", "hwmon/hwmon*", "nvme*/hwmon*"}

// Reading has the temperatures that a thermometer shows.
type Reading struct {
	Celsius float64
	// WarnCelsius is the temperature from which on the drive itself warns.
	WarnCelsius float64
}

// beforeCritical stands in for the distance of a warning from the temperature that is critical, where a drive has the
// latter alone.
const beforeCritical = 5

// Read reads the thermometer, and fails where it tells no temperature, or none that the drive warns of.
func (s Sensor) Read() (Reading, error) {
	now, err := s.celsius("temp1_input")
	if err != nil {
		return Reading{}, err
	}
	warn, err := s.celsius("temp1_max")
	if err != nil || warn <= 0 {
		if warn, err = s.celsius("temp1_crit"); err == nil {
			warn -= beforeCritical
		}
	}
	if err == nil && warn <= 0 {
		err = fmt.Errorf("%s: the drive has no temperature that it warns of", s.dir)
	}
	return Reading{now, warn}, err
}

// celsius reads a file of hwmon, which has a thousandth of a degree for a unit.
func (s Sensor) celsius(name string) (float64, error) {
	line, err := text(s.dir, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(line, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Join(s.dir, name), err)
	}
	return float64(n) / 1000, nil
}

// text is the line of a small file.
func text(dir, name string) (string, error) {
	doc, err := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(doc)), err
}
