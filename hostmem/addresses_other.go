//go:build !linux && !darwin

package hostmem

import "errors"

func mapAddresses(int64) (mapping, error) {
	return mapping{}, errors.New("addresses without memory need Linux or macOS")
}
