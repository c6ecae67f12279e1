package ptx

// decoders decode the instructions that are supported, by the first part of their name. A decoder takes
// the modifiers that it knows, resolves the operands and sets exec; what it leaves is not supported.
var decoders = map[string]func(*assembly){
	// integer.go, float.go
	"add": decodeArithmetic, "sub": decodeArithmetic, "mul": decodeMultiply, "mad": decodeMultiplyAdd, "fma": decodeFMA,
	"div": decodeDivide, "rem": decodeRemainder, "min": decodeMinMax, "max": decodeMinMax, "neg": decodeNegate,
	"abs":  decodeAbs,
	"addc": decodeCarry, "subc": decodeCarry, "madc": decodeMultiplyAdd, "sad": decodeSad,
	"rcp": decodeFunction, "sqrt": decodeFunction, "rsqrt": decodeFunction, "sin": decodeFunction, "cos": decodeFunction,
	"lg2": decodeFunction, "ex2": decodeFunction, "tanh": decodeFunction, "copysign": decodeCopysign, "testp": decodeTestp,
	// logic.go
	"and": decodeLogic, "or": decodeLogic, "xor": decodeLogic, "not": decodeNot, "cnot": decodeCnot, "lop3": decodeLop3,
	"shl": decodeShift, "shr": decodeShift, "shf": decodeFunnel, "prmt": decodePermute,
	"popc": decodeBits, "clz": decodeBits, "brev": decodeBits, "bfind": decodeFind, "bfe": decodeExtract,
	"bfi":  decodeInsert,
	"setp": decodeSetp, "set": decodeSet, "selp": decodeSelp, "mov": decodeMov, "cvt": decodeConvert,
	"cvta": decodeConvertAddress,
	// memory.go, async.go, atomic.go
	"ld": decodeLoad, "st": decodeStore, "atom": decodeAtom, "red": decodeAtom, "cp": decodeAsync,
	"createpolicy": decodePolicy,
	"prefetch":     decodePrefetch, "membar": decodeFence, "fence": decodeFence,
	// crosslane.go, matrix.go
	"shfl": decodeShuffle, "vote": decodeVote, "redux": decodeRedux, "match": decodeMatch, "activemask": decodeActiveMask,
	"ldmatrix": decodeLoadMatrix, "mma": decodeMultiplyMatrix,
	// warpgroup.go
	"wgmma": decodeWarpgroup, "stmatrix": decodeStoreMatrix,
	// control.go
	"bra": decodeBranch, "ret": decodeReturn, "exit": decodeReturn, "trap": decodeTrap, "bar": decodeBarrier,
	"barrier":   decodeBarrier,
	"nanosleep": decodeSleep,
}
