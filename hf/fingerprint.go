package hf

import (
	"context"
	"crypto/sha256"
	"fmt"
)

// A fingerprint reads this many pages of this size, or one page of each tensor where there are more tensors.
const (
	fingerprintPages     = 2048
	fingerprintPageBytes = 4096
)

// FingerprintOf is the fingerprint of the weights in a model's directory.
func FingerprintOf(ctx context.Context, dir string) (string, error) {
	w, err := OpenWeights(dir)
	if err != nil {
		return "", err
	}
	defer w.Close()
	return w.Fingerprint(ctx)
}

// Fingerprint tells the weights of one model from those of another: a SHA-256 over the names, types and shapes of all
// tensors, and over pages of their bytes, spread evenly over each. How the tensors are divided into files does not
// matter. It reads 8 MiB or a page of each tensor, whichever is more, so that weights of any size take seconds.
func (w *Weights) Fingerprint(ctx context.Context) (string, error) {
	sum, page := sha256.New(), make([]byte, fingerprintPageBytes)
	pages := int64(max(fingerprintPages/max(len(w.names), 1), 1))
	for _, tensor := range w.names {
		for _, name := range w.Stored(tensor) {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			info, _ := w.Info(name)
			fmt.Fprintf(sum, "%q %s %v\n", name, info.Type, []int(info.Shape))
			for _, off := range sampled(info.Bytes, pages) {
				n := min(int64(len(page)), info.Bytes-off)
				if err := w.ReadAt(name, page[:n], off); err != nil {
					return "", err
				}
				sum.Write(page[:n])
			}
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// sampled are the offsets of the pages that are read of a tensor: all, or some from its first to its last bytes; a
// single one is in the middle.
func sampled(bytes, pages int64) (offs []int64) {
	last := bytes - fingerprintPageBytes
	switch {
	case bytes <= pages*fingerprintPageBytes:
		for off := int64(0); off < bytes; off += fingerprintPageBytes {
			offs = append(offs, off)
		}
	case pages == 1:
		offs = append(offs, last/2)
	default:
		for i := range pages {
			offs = append(offs, last/(pages-1)*i+last%(pages-1)*i/(pages-1))
		}
	}
	return offs
}
