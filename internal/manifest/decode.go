package manifest

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// decoder fills structs from values by their JSON field names, strictly, and gathers every problem.
type decoder struct {
	source   *Source
	problems []api.FieldProblem
	textForm
}

func (d *decoder) problem(path string, v value, format string, args ...any) {
	p := api.FieldProblem{Location: path, Line: v.line, Message: fmt.Sprintf(format, args...)}
	if v.kind == kindBool || v.kind == kindNumber || v.kind == kindString {
		p.Value = v.text
	}
	if d.columns {
		p.Column = v.column
	}
	d.problems = append(d.problems, p)
}

// object fills the struct that into points to from the top value.
func (d *decoder) object(v value, into any) {
	if v.kind != kindMap {
		d.problem("", v, "is %s; write fields like: %s", v.kind, d.example)
		return
	}
	d.fields("", v, reflect.ValueOf(into).Elem())
}

func (d *decoder) fields(path string, v value, into reflect.Value) {
	known := map[string]reflect.Value{}
	structFields(into, known)
	seen := map[string]int{}
	for _, f := range v.fields {
		at := join(path, f.key)
		if first := seen[f.key]; first > 0 {
			d.problem(at, value{line: f.line, column: f.column}, "is given twice, first on line %d; keep one", first)
			continue
		}
		seen[f.key] = f.line
		target, ok := known[f.key]
		if !ok {
			d.problem(at, value{line: f.line, column: f.column}, "%s", unknownField(f.key, known))
			continue
		}
		if d.patch && f.value.kind == kindNull {
			d.source.resets[at] = true
			target.SetZero()
			continue
		}
		d.source.lines[at], d.source.columns[at] = f.line, f.column
		d.value(at, f.value, target)
	}
}

// structFields lists the settable fields by their JSON names, those of embedded structs included.
func structFields(v reflect.Value, into map[string]reflect.Value) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			structFields(v.Field(i), into)
		case name != "" && name != "-":
			into[name] = v.Field(i)
		}
	}
}

// digits is a whole number of any length.
var digits = regexp.MustCompile(`^[+-]?[0-9]+$`)

// The types that are written as text but are numbers or structs inside.
var (
	bytesType    = reflect.TypeFor[api.Bytes]()
	durationType = reflect.TypeFor[api.Duration]()
	rateType     = reflect.TypeFor[api.Rate]()
	dscpType     = reflect.TypeFor[api.DSCP]()
	gpuType      = reflect.TypeFor[api.GPURequest]()
	networkType  = reflect.TypeFor[api.GroupNetwork]()
	timeType     = reflect.TypeFor[time.Time]()
)

func (d *decoder) value(path string, v value, into reflect.Value) {
	if v.kind == kindNull {
		d.problem(path, v, "has no value; give a value or omit the field")
		return
	}
	if into.Kind() == reflect.Pointer { // tells what was given from what was not
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch {
	case into.Type() == bytesType:
		d.bytes(path, v, into)
	case into.Type() == durationType:
		d.duration(path, v, into)
	case into.Type() == timeType:
		d.time(path, v, into)
	case into.Type() == rateType:
		d.rate(path, v, into)
	case into.Type() == dscpType:
		d.dscp(path, v, into)
	case into.Type() == gpuType && v.kind == kindNumber:
		into.SetString(v.text)
	case into.Type() == networkType && v.kind != kindMap: // its name alone
		d.string(path, v, into.FieldByName("Name"))
	case into.Kind() == reflect.String:
		d.string(path, v, into)
	case into.Kind() == reflect.Int, into.Kind() == reflect.Int64:
		d.int(path, v, into)
	case into.Kind() == reflect.Float64:
		d.float(path, v, into)
	case into.Kind() == reflect.Bool:
		if d.want(path, v, kindBool) {
			into.SetBool(v.text == "true")
		}
	case into.Kind() == reflect.Map:
		d.mapping(path, v, into)
	case into.Kind() == reflect.Slice:
		d.list(path, v, into)
	case into.Kind() == reflect.Struct:
		if d.want(path, v, kindMap) {
			d.fields(path, v, into)
		}
	default:
		d.problem(path, v, "can't be read here: the program knows no %s (a bug; please report it)", into.Kind())
	}
}

// want refuses a value of another kind.
func (d *decoder) want(path string, v value, k kind) bool {
	if v.kind == k {
		return true
	}
	d.problem(path, v, "is %s, but has to be %s", describe(v), k)
	return false
}

// describe a value by its kind and, for a scalar, its text.
func describe(v value) string {
	switch v.kind {
	case kindString:
		return fmt.Sprintf("the text %q", v.text)
	case kindNumber:
		return "the number " + v.text
	case kindBool:
		return v.text
	default:
		return string(v.kind)
	}
}

func (d *decoder) string(path string, v value, into reflect.Value) {
	if v.kind == kindNumber || v.kind == kindBool {
		if v.raw != "" {
			v.text = v.raw // 0644, not 420
		}
		d.problem(path, v, "is %s, but has to be text; put it in quotes: %q", describe(v), v.text)
		return
	}
	if v.kind == kindMap { // in a flow sequence a MAC address is one
		d.problem(path, v, "is %s, but has to be text; text that holds a ':' goes in quotes, like \"52:54:00:12:34:56\"", describe(v))
		return
	}
	if d.want(path, v, kindString) {
		into.SetString(v.text)
	}
}

func (d *decoder) int(path string, v value, into reflect.Value) {
	if v.kind != kindNumber {
		if _, err := strconv.Atoi(v.text); err == nil && v.kind == kindString {
			d.problem(path, v, "is the text %q, but has to be a number; remove the quotes", v.text)
			return
		}
		if digits.MatchString(v.text) { // YAML reads a number that fits no integer as text
			d.problem(path, v, "is %s, but has to be a whole number that fits 64 bits", v.text)
			return
		}
		d.want(path, v, kindNumber)
		return
	}
	n, err := strconv.ParseInt(v.text, 0, 64)
	if err != nil {
		d.problem(path, v, "is %s, but has to be a whole number that fits 64 bits", v.text)
		return
	}
	into.SetInt(n)
}

func (d *decoder) bytes(path string, v value, into reflect.Value) {
	if v.kind != kindString && v.kind != kindNumber {
		d.problem(path, v, "is %s, but has to be a size like 512MiB", describe(v))
		return
	}
	n, err := api.ParseBytes(v.text)
	if err != nil {
		d.problem(path, v, "%v", err)
		return
	}
	into.SetInt(int64(n))
}

func (d *decoder) rate(path string, v value, into reflect.Value) {
	if v.kind != kindString {
		d.problem(path, v, "is %s, but has to be a rate in bits per second like 200Mbit or 1.5Gbit", describe(v))
		return
	}
	r, err := api.ParseRate(v.text)
	if err != nil {
		d.problem(path, v, "%v", err)
		return
	}
	into.SetInt(int64(r))
}

func (d *decoder) dscp(path string, v value, into reflect.Value) {
	if v.kind != kindString && v.kind != kindNumber {
		d.problem(path, v, "is %s, but has to be a DSCP: a number from 0 to 63, or a name such as EF", describe(v))
		return
	}
	code, err := api.ParseDSCP(v.text)
	if err != nil {
		d.problem(path, v, "%v", err)
		return
	}
	into.SetString(string(code))
}

func (d *decoder) duration(path string, v value, into reflect.Value) {
	if v.kind != kindString {
		hint := ""
		if v.kind == kindNumber {
			hint = "; the number needs a unit"
		}
		d.problem(path, v, "is %s, but has to be a time span like 90s, 30m, 4h or 2d%s", describe(v), hint)
		return
	}
	n, err := api.ParseDuration(v.text)
	if err != nil {
		d.problem(path, v, "%v", err)
		return
	}
	into.SetInt(int64(n))
}

func (d *decoder) time(path string, v value, into reflect.Value) {
	t, err := time.Parse(time.RFC3339Nano, v.text)
	if v.kind != kindString || err != nil {
		d.problem(path, v, "is %s, but has to be a time like 2026-01-31T08:00:00Z", describe(v))
		return
	}
	into.Set(reflect.ValueOf(t))
}

func (d *decoder) mapping(path string, v value, into reflect.Value) {
	if !d.want(path, v, kindMap) {
		return
	}
	m, seen := reflect.MakeMap(into.Type()), map[string]bool{}
	if d.patch {
		for entries := into.MapRange(); entries.Next(); {
			m.SetMapIndex(entries.Key(), entries.Value())
		}
	}
	for _, f := range v.fields {
		at := join(path, f.key)
		key := reflect.ValueOf(f.key)
		if seen[f.key] {
			d.problem(at, value{line: f.line, column: f.column}, "is given twice; keep one")
			continue
		}
		seen[f.key] = true
		if d.patch && f.value.kind == kindNull {
			m.SetMapIndex(key, reflect.Value{})
			continue
		}
		d.source.lines[at], d.source.columns[at] = f.line, f.column
		element := reflect.New(into.Type().Elem()).Elem()
		d.value(at, f.value, element)
		m.SetMapIndex(key, element)
	}
	into.Set(m)
}

func (d *decoder) list(path string, v value, into reflect.Value) {
	if !d.want(path, v, kindList) {
		return
	}
	defer func(patch bool) { d.patch = patch }(d.patch)
	d.patch = false // a merge patch replaces lists as a whole (RFC 7396, section 1)
	s := reflect.MakeSlice(into.Type(), len(v.items), len(v.items))
	for i, item := range v.items {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.source.lines[at], d.source.columns[at] = item.line, item.column
		d.value(at, item, s.Index(i))
	}
	into.Set(s)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
