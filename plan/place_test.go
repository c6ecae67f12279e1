package plan_test

import (
	"reflect"
	"testing"

	"github.com/millrace/millrace/plan"
)

// A place is named and not said by a bool for each part: a list of booleans would be a second author of places.
func TestPlacesAreNamed(t *testing.T) {
	var look func(path string, of reflect.Type)
	look = func(path string, of reflect.Type) {
		switch of.Kind() {
		case reflect.Slice, reflect.Array:
			if of.Elem().Kind() == reflect.Bool {
				t.Errorf("%s is a list of booleans", path)
			}
			look(path+"[]", of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				look(path+"."+of.Field(i).Name, of.Field(i).Type)
			}
		}
	}
	look("Placement", reflect.TypeFor[plan.Placement]())
}

func TestPlaceAsText(t *testing.T) {
	for p := plan.Absent; p <= plan.Disk; p++ {
		text, err := p.MarshalText()
		var back plan.Place
		if err != nil || back.UnmarshalText(text) != nil || back != p {
			t.Errorf("%d becomes %s and then %v (%v)", p, text, back, err)
		}
	}
	var p plan.Place
	if err := p.UnmarshalText([]byte("attic")); err == nil {
		t.Error("an unknown place is read")
	}
}
