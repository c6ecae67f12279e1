package ptx

// A special is a register that the launch sets.
type special uint8

const (
	noSpecial special = iota
	tidX
	tidY
	tidZ
	ntidX
	ntidY
	ntidZ
	ctaidX
	ctaidY
	ctaidZ
	nctaidX
	nctaidY
	nctaidZ
	laneID
	warpID
	warps
	lanemaskEq
	lanemaskLe
	lanemaskLt
	lanemaskGe
	lanemaskGt
	dynamicShared // the address of the extern .shared array
	dynamicBytes
	totalBytes
)

var specials = map[string]special{
	"%tid.x": tidX, "%tid.y": tidY, "%tid.z": tidZ, "%ntid.x": ntidX, "%ntid.y": ntidY, "%ntid.z": ntidZ,
	"%ctaid.x": ctaidX, "%ctaid.y": ctaidY, "%ctaid.z": ctaidZ, "%nctaid.x": nctaidX, "%nctaid.y": nctaidY,
	"%nctaid.z": nctaidZ,
	"%laneid":   laneID, "%warpid": warpID, "%nwarpid": warps,
	"%lanemask_eq": lanemaskEq, "%lanemask_le": lanemaskLe, "%lanemask_lt": lanemaskLt, "%lanemask_ge": lanemaskGe,
	"%lanemask_gt":       lanemaskGt,
	"%dynamic_smem_size": dynamicBytes, "%total_smem_size": totalBytes,
}

// specialNamed returns a special register and its size; 0 if there is no such register.
func specialNamed(name string) (special, int) { return specials[name], 32 }

// special is the value that a special register has in a lane.
func (w *warp) special(s special, lane int) uint64 {
	l := w.block.launch
	thread := uint32(w.first + lane)
	x, y := l.Block[0], l.Block[1]
	bit := uint64(1) << lane
	switch s {
	case tidX:
		return uint64(thread % x)
	case tidY:
		return uint64(thread / x % y)
	case tidZ:
		return uint64(thread / x / y)
	case ntidX, ntidY, ntidZ:
		return uint64(l.Block[s-ntidX])
	case ctaidX, ctaidY, ctaidZ:
		return uint64(w.block.id[s-ctaidX])
	case nctaidX, nctaidY, nctaidZ:
		return uint64(l.Grid[s-nctaidX])
	case laneID:
		return uint64(lane)
	case warpID:
		return uint64(w.first / lanes)
	case warps:
		return uint64((l.threads() + lanes - 1) / lanes)
	case lanemaskEq:
		return bit
	case lanemaskLe:
		return bit<<1 - 1
	case lanemaskLt:
		return bit - 1
	case lanemaskGe:
		return all &^ (bit - 1)
	case lanemaskGt:
		return all &^ (bit<<1 - 1)
	case dynamicShared:
		return sharedBase + uint64(l.kernel.dynamicAt())
	case dynamicBytes:
		return uint64(l.SharedBytes)
	case totalBytes:
		return uint64(l.sharedBytes())
	}
	return 0
}
