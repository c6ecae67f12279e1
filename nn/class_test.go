package nn

import (
	"reflect"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// classOf has the class of each operation of the device's interfaces that visits ask for. An operation that is not here
// fails TestEachOperationHasAClass: who adds one has to say what its rate is.
var classOf = map[string]Class{
	"Copy": OfMoves, "Zero": OfMoves, "MatMul": OfProducts, "AddBias": OfElements, "BiasGrad": OfElements,
	"Add": OfElements, "Scale": OfElements, "Cast": OfMoves, "RMSNorm": OfElements, "RMSNormGrad": OfNormGrads,
	"LayerNorm": OfElements, "LayerNormGrad": OfNormGrads, "RoPE": OfElements, "Attention": OfAttention,
	"AttentionGrad": OfAttentionGrad, "AttendCache": OfCacheAttention, "SinkGrad": OfElements, "JoinHeads": OfMoves,
	"SplitHeads": OfMoves, "GLU": OfElements, "GLUGrad": OfUnitGrads, "LSEInit": OfElements, "LSEUpdate": OfLoss,
	"TokenLoss": OfElements, "CrossEntropyGrad": OfLoss, "PickLogits": OfLoss,
	"PutLogitGrads": OfLoss, "DrawTokens": OfLoss, "Sum": OfElements, "Gather": OfMoves, "Put": OfMoves,
	"ScatterAdd": OfElements, "Route": OfElements, "RouteGrad": OfElements, "SortChoices": OfElements,
	"CountChoices": OfElements, "ScaleChoices": OfElements, "ScaleChoicesGrad": OfElements, "GatherRows": OfMoves,
	"ExpertMatMul": OfExperts, "ExpertWeightGrad": OfExpertGrads, "ExpertBiasGrad": OfElements, "ExpertGLU": OfElements,
	"ExpertGLUGrad": OfUnitGrads, "CombineRows": OfElements, "CausalConv": OfConv, "CausalConvGrad": OfConvGrad,
	"ContinueConv": OfConv, "Gate": OfElements, "GateGrad": OfElements, "DeltaGates": OfElements,
	"DeltaGatesGrad": OfElements, "GatedDelta": OfDelta, "GatedDeltaGrad": OfDeltaGrad, "ContinueDelta": OfDeltaSteps,
}

// notVisited are methods of a stream that no visit of a layer calls. Updates have classes in package plan.
var notVisited = map[string]bool{"Record": true, "Wait": true, "Sync": true, "Close": true, "AdamW": true,
	"AdamW8": true, "SumSquares": true}

func TestEachOperationHasAClass(t *testing.T) {
	stream := reflect.TypeFor[device.Stream]()
	for i := range stream.NumMethod() {
		name := stream.Method(i).Name
		want, isVisited := classOf[name]
		if isVisited == notVisited[name] {
			t.Errorf("%s: give it a class in classOf and in nn/measure.go, or say that no visit asks for it", name)
		}
		if !isVisited {
			continue
		}
		if got, ok := countedAs(name, device.AttentionSpec{}); !ok || got != want {
			t.Errorf("%s is counted as %v (%v), want %v", name, got, ok, want)
		}
	}
	for name, want := range map[string]Class{"Attention": OfCappedAttention, "AttentionGrad": OfCappedAttentionGrad} {
		if got, ok := countedAs(name, device.AttentionSpec{SoftCap: 50}); !ok || got != want {
			t.Errorf("%s with a soft cap is counted as %v, want %v", name, got, want)
		}
	}
}

// countedAs calls a method of a counter and returns the class that it counts.
func countedAs(name string, attention device.AttentionSpec) (class Class, ok bool) {
	c := &counter{docs: []int{2}}
	method := reflect.ValueOf(c).MethodByName(name)
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		args = append(args, sampleOf(method.Type().In(i), attention))
	}
	defer func() {
		if recover() != nil { // the counter has no such method
			ok = false
		}
	}()
	method.Call(args)
	var found []Class
	for class := range c.Work {
		// The gradient of attention has a pass of elements besides.
		if c.Work[class] > 0 && !(Class(class) == OfElements && name == "AttentionGrad") {
			found = append(found, Class(class))
		}
	}
	if len(found) == 0 && c.Ops == 1 { // next to no work
		return OfElements, true
	}
	return found[0], len(found) == 1 && c.Ops == 1
}

// sampleOf is an argument of a type with which an operation has work to do.
func sampleOf(t reflect.Type, attention device.AttentionSpec) reflect.Value {
	attention.Heads, attention.KVHeads, attention.HeadDim = 1, 1, 2
	mat := device.NewMat(counted, tensor.F32, 2, 2)
	routing := device.Routing{Rows: 4, TopK: 1, Experts: 2}
	for _, v := range []any{mat, device.Mem{Len: 8}, attention, routing,
		device.Blocks{Routing: routing, Experts: 2, Rows: 2, Count: 2},
		device.DeltaSpec{KeyHeads: 1, Heads: 1, KeyDim: 2, ValueDim: 2}} {
		if reflect.TypeOf(v) == t {
			return reflect.ValueOf(v)
		}
	}
	if t.Kind() == reflect.Int {
		return reflect.ValueOf(1).Convert(t)
	}
	return reflect.Zero(t)
}
