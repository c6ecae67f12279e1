package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
)

// rehearseProducts are the matrix products of a step, each shape and alignment once. Their operands have offsets in
// the arena.
func rehearseProducts(p *plan.Plan) (products []device.Product, err error) {
	seen := map[string]bool{}
	options := null.Options{Product: func(product device.Product) {
		key := fmt.Sprint(product.MatMulFlags.TransA, product.TransB)
		for _, m := range []device.Mat{product.C, product.A, product.B, product.Onto} {
			key += fmt.Sprint(" ", m.DType, m.Rows, m.Cols, m.Stride, m.Off%device.ArenaAlign)
		}
		if !seen[key] {
			seen[key] = true
			products = append(products, product)
		}
	}}
	_, engine, _, end, err := rehearsal(p, options, hostmem.New())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	_, err = engine.Step(context.Background(), emptyBatch(p.Numerics), emptyUpdate(p, 1))
	return products, err
}
