package tensorboard

import (
	"math"
	"strconv"
)

// Scalar is a number of a step. TensorBoard keeps 32 bits of it.
type Scalar struct {
	Tag   string
	Value float64
}

// Setting is a hyperparameter. A value that is a number or a truth is shown as such.
type Setting struct{ Name, Value string }

// Status says how a run ended.
type Status int

// The statuses of a run, by their numbers in the plugin of hyperparameters.
const (
	Succeeded Status = 1
	Failed    Status = 2
)

// fileVersion is the version of event files, by which TensorBoard knows that events that say where a run continues
// are in them.
const fileVersion = "brain.Event:2"

// Types of tensors, and classes of data.
const (
	floatTensor  = 1
	stringTensor = 7
	tensorClass  = 2
)

// event begins an Event.
func event(wallTime float64, step int64) message {
	return message(nil).double(1, wallTime).varint(2, step)
}

// withSummary ends an Event with a summary of values.
func (m message) withSummary(values ...message) message {
	var summary message
	for _, v := range values {
		summary = summary.bytes(1, v)
	}
	return m.bytes(5, summary)
}

func scalarValue(s Scalar) message { return message(nil).text(1, s.Tag).float(2, float32(s.Value)) }

// tensorValue is a value of a plugin that reads tensors.
func tensorValue(tag, plugin string, content []byte, tensor message) message {
	data := message(nil).text(1, plugin)
	if content != nil {
		data = data.bytes(2, content)
	}
	metadata := message(nil).bytes(1, data).varint(4, tensorClass)
	return message(nil).text(1, tag).bytes(8, tensor).bytes(9, metadata)
}

func textValue(tag, text string) message {
	return tensorValue(tag, "text", nil, message(nil).varint(1, stringTensor).bytes(2, nil).text(8, text))
}

// The plugin of hyperparameters, and its tags. It reads what is in the content; the tensor is an empty one.
const (
	hparamsPlugin = "hparams"
	startTag      = "_hparams_/session_start_info"
	endTag        = "_hparams_/session_end_info"
)

// hparamsValue holds a HParamsPluginData with one of its fields.
func hparamsValue(tag string, field int, data message) message {
	noElements := message(nil).bytes(2, message(nil).varint(1, 0))
	return tensorValue(tag, hparamsPlugin, message(nil).bytes(field, data),
		message(nil).varint(1, floatTensor).bytes(2, noElements))
}

// sessionStart is a SessionStartInfo.
func sessionStart(settings []Setting, group string, startSec float64) message {
	var m message
	for _, s := range settings {
		m = m.bytes(1, message(nil).text(1, s.Name).bytes(2, jsonValue(s.Value)))
	}
	return m.text(4, group).double(5, startSec)
}

// jsonValue is a google.protobuf.Value: a number, a truth, or a text.
func jsonValue(text string) message {
	if x, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
		return message(nil).double(2, x)
	}
	if b, err := strconv.ParseBool(text); err == nil && (text == "true" || text == "false") {
		truth := int64(0)
		if b {
			truth = 1
		}
		return message(nil).varint(4, truth)
	}
	return message(nil).text(3, text)
}

// sessionEnd is a SessionEndInfo.
func sessionEnd(status Status, endSec float64) message {
	return message(nil).varint(1, int64(status)).double(2, endSec)
}
