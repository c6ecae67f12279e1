package driver

import (
	"errors"
	"fmt"
	"reflect"
)

// Install ends the errors that installing a driver fixes.
const Install = "install NVIDIA's driver 550 or newer (nvidia-smi shows which one runs)"

// library is an open shared library.
type library interface {
	// bind makes the function that fn points at call a symbol; false if the library lacks it.
	bind(fn any, symbol string) bool
}

// bindAll fills an API from a library, if that is a driver which is new enough. path is for messages.
func bindAll(lib library, path string) (*API, error) {
	api := new(API)
	// The version comes first: it says more about an old driver than a symbol that it lacks.
	var version int32
	switch {
	case !lib.bind(&api.DriverGetVersion, "cuDriverGetVersion"):
		return nil, fmt.Errorf("%s is not a CUDA driver: it lacks cuDriverGetVersion; %s", path, Install)
	default:
		switch r := api.DriverGetVersion(&version); {
		case r == StubLibrary:
			return nil, fmt.Errorf("%s is the CUDA toolkit's stub and not the driver; take it off LD_LIBRARY_PATH, or %s",
				path, Install)
		case r != Success:
			return nil, r.Err("cuDriverGetVersion")
		case version < MinVersion:
			return nil, fmt.Errorf("the NVIDIA driver (%s) supports CUDA %s, and %s is needed; %s", path,
				FormatVersion(version), FormatVersion(MinVersion), Install)
		}
	}
	fields := reflect.ValueOf(api).Elem()
	for i := range fields.NumField() {
		symbol := fields.Type().Field(i).Tag.Get("cuda")
		if !lib.bind(fields.Field(i).Addr().Interface(), symbol) {
			return nil, fmt.Errorf("the NVIDIA driver (%s, CUDA %s) lacks %s; %s", path, FormatVersion(version), symbol, Install)
		}
	}
	return api, nil
}

// FormatVersion writes what DriverGetVersion gives the way people do: 12040 is "12.4".
func FormatVersion(version int32) string {
	return fmt.Sprintf("%d.%d", version/1000, version%1000/10)
}

// ErrMissing is in Load's error (errors.Is) where there is no driver at all, or this program cannot have one: a
// machine that is not meant to compute on a GPU. Every other error is about a driver that is there and of no use.
var ErrMissing = errors.New("no NVIDIA driver")

// missing is the text of an error that is ErrMissing.
type missing string

func (m missing) Error() string        { return string(m) }
func (m missing) Is(target error) bool { return target == ErrMissing }

// errNotFound is a library that is not there, as opposed to one that does not load.
var errNotFound = errors.New("no such file")

// loadFrom takes the first library that is there. One that is there and does not load ends the search: falling
// through to another would hide why.
func loadFrom[L library](paths []string, open func(path string) (L, error)) (*API, error) {
	for _, path := range paths {
		lib, err := open(path)
		switch {
		case errors.Is(err, errNotFound):
			continue
		case err != nil:
			return nil, fmt.Errorf("the NVIDIA driver's library does not load: %w; %s", err, Install)
		}
		return bindAll(lib, path)
	}
	return nil, missing(fmt.Sprintf("there is no NVIDIA driver: %s was not found; %s", paths[0], Install))
}
