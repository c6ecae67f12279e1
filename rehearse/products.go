package rehearse

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
)

// Products are the matrix products of a step by rank, each shape and alignment once. Their operands have
// offsets in the arena of their rank.
func Products(p *plan.Plan) (products [][]device.Product, err error) {
	products = make([][]device.Product, p.Ranks())
	seen := make([]map[string]bool, p.Ranks())
	for rank := range seen {
		seen[rank] = map[string]bool{}
	}
	told := func(rank int, product device.Product) {
		key := fmt.Sprint(product.MatMulFlags.TransA, product.TransB)
		for _, m := range []device.Mat{product.C, product.A, product.B, product.Onto} {
			key += fmt.Sprint(" ", m.DType, m.Rows, m.Cols, m.Stride, m.Off%device.ArenaAlign)
		}
		if !seen[rank][key] {
			seen[rank][key] = true
			products[rank] = append(products[rank], product)
		}
	}
	_, engine, _, end, err := rehearsal(p, told, nil, hostmem.New())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	_, err = engine.Step(context.Background(), emptyBatch(p), emptyUpdate(p, 1))
	return products, err
}
