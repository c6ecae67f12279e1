package rng

// Gumbel is the noise -log(-log u) of a word, with u in the middle of the word's interval, the w-th of 2^32 equal ones
// of (0, 1). Of numbers x, each with a word of its own, the greatest x + Gumbel is that of number i with probability
// softmax(x)[i]. The noise ends at -3.13 and 22.87, so a number that is 27 below another one is never the greatest.
//
// Sources: Gumbel, "Statistical Theory of Extreme Values and Some Practical Applications" (1954); Maddison, Tarlow and
// Minka, "A* Sampling" (2014), which call this the Gumbel-max trick.
func Gumbel(w uint32) float64 {
	const scale = 1.0 / (1 << 32)
	return -log(-log((float64(w) + 0.5) * scale))
}
