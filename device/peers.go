package device

// PeerCopier is a [Device] that may copy from the memory of other devices, without host memory between the two.
type PeerCopier interface {
	// CopiesFrom reports whether buffers of another device may be the source of a [Stream.Copy] of this one, and
	// prepares the driver for such copies. It is false where the driver would bring the bytes to host memory first.
	CopiesFrom(other Device) bool
}

// Peers reports whether each of the devices copies from each of the others.
func Peers(devices []Device) bool {
	for _, to := range devices {
		copier, ok := to.(PeerCopier)
		for _, from := range devices {
			if from != to && !(ok && copier.CopiesFrom(from)) {
				return false
			}
		}
	}
	return true
}
