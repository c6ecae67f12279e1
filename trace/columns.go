package trace

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Columns calls add with each number of a record and its name, in the order of the record. A number of a nested field
// has a path: lanes/fetch, rewards/margins, eval/LABEL/loss of an evaluation set. Of lists the number of the layer,
// host or device comes before the quantity: experts/0/busiest, hosts/1/step_sec, devices/0/fetch. A number that is not
// finite is NaN or infinite here. The step, the time and texts are left out.
func (m *Metrics) Columns(add func(name string, x float64)) {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		switch name := jsonName(v.Type().Field(i)); name {
		case "step", "time", "-":
		case evalSetsName:
			addNumbers(strings.TrimSuffix(EvalSetPrefix, "/"), v.Field(i), add)
		default:
			addNumbers(name, v.Field(i), add)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Objective)) {
		add(name, m.Objective[name])
	}
}

// jsonName is the key that a field has in JSON.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// addNumbers adds the numbers of a value.
func addNumbers(path string, v reflect.Value, add func(string, float64)) {
	switch v.Kind() {
	case reflect.Float64:
		add(path, v.Float())
	case reflect.Int, reflect.Int64:
		add(path, float64(v.Int()))
	case reflect.Pointer:
		if !v.IsNil() {
			addNumbers(path, v.Elem(), add)
		}
	case reflect.Array: // Lanes
		for lane := range v.Len() {
			if x := v.Index(lane).Float(); x != 0 || !Lane(lane).IsOptional() {
				add(path+"/"+Lane(lane).String(), x)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			addNumbers(path+"/"+strconv.Itoa(i), v.Index(i), add)
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			addNumbers(path+"/"+key.String(), v.MapIndex(key), add)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, f := jsonName(v.Type().Field(i)), v.Field(i)
			if f.Kind() != reflect.Slice {
				addNumbers(path+"/"+name, f, add)
				continue
			}
			for at := range f.Len() {
				addNumbers(path+"/"+strconv.Itoa(at)+"/"+name, f.Index(at), add)
			}
		}
	}
}

// ColumnNames lists the columns of all records, each once, in the order in which they first come.
func ColumnNames(records []Metrics) (names []string) {
	known := map[string]bool{}
	for i := range records {
		records[i].Columns(func(name string, _ float64) {
			if !known[name] {
				known[name] = true
				names = append(names, name)
			}
		})
	}
	return names
}
