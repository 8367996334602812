package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
)

// flagError says what is wrong with a flag in this program's words: those of pflag are strconv's.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return usage("%v; see '%s --help'", err, cmd.CommandPath())
	}
	flag := invalid.GetFlag()
	return usage("--%s: %s; see '%s --help'", flag.Name, valueProblem(flag.Value.Type(), invalid), cmd.CommandPath())
}

// valueProblem says why a value is none of a flag's type.
func valueProblem(kind string, invalid *pflag.InvalidValueError) string {
	text := invalid.GetValue()
	switch kind {
	case "int":
		if digits := strings.TrimLeft(text, "+-"); digits != "" && strings.Trim(digits, "0123456789") == "" {
			return fmt.Sprintf("%s is out of range", text)
		}
		return fmt.Sprintf("%q is not a whole number", text)
	case "bool":
		return fmt.Sprintf("%q is neither true nor false", text)
	case "stringToString":
		return fmt.Sprintf("%q is not KEY=VALUE", text)
	case "stringToInt64":
		return fmt.Sprintf("%q is not NAME=NUMBER", text)
	case "stringSlice", "stringArray":
		return fmt.Sprintf("%q can't be read as a list; separate the items by commas, without quotes", text)
	default: // types of this program, whose words these are
		return invalid.Unwrap().Error()
	}
}

// timeout makes how long to wait the value of a flag; 0 is no limit.
type timeout struct{ value *time.Duration }

func timeoutFlag(value *time.Duration, standard time.Duration) pflag.Value {
	*value = standard
	return timeout{value}
}

// String is empty for none, so that help shows no default.
func (t timeout) String() string {
	if t.value == nil || *t.value == 0 {
		return ""
	}
	return api.Duration(*t.value).String()
}

// Set reads a span of time, or 0.
func (t timeout) Set(text string) error {
	d, err := api.ParseDuration(text)
	if err == nil {
		*t.value = d.Std()
	}
	return err
}

// Type names the kind of value in help.
func (t timeout) Type() string { return "span" }

// fileProblem says why a file can't be read, without the name of the system call.
func fileProblem(path string, err error) string {
	var errno syscall.Errno
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("there is no file %s", path)
	case errors.Is(err, syscall.EISDIR):
		return fmt.Sprintf("%s is a directory; name a file", path)
	case errors.As(err, &errno):
		return fmt.Sprintf("can't read %s: %s", path, errno)
	default:
		return fmt.Sprintf("can't read %s: %v", path, err)
	}
}

// byteCount makes a size the value of a flag; 0 is no limit.
type byteCount struct{ value *int64 }

// String is empty for none, so that help shows no default.
func (b byteCount) String() string {
	if b.value == nil || *b.value == 0 {
		return ""
	}
	return api.Bytes(*b.value).String()
}

// Set reads a size above 0.
func (b byteCount) Set(text string) error {
	bytes, err := api.ParseBytes(text)
	switch {
	case err != nil:
		return err
	case bytes <= 0:
		return fmt.Errorf("%q is not above 0", text)
	}
	*b.value = int64(bytes)
	return nil
}

// Type names the kind of value in help.
func (b byteCount) Type() string { return "size" }

// cacheSize is the room for caches of datasets: a size, or off.
type cacheSize struct{ opts *config.Agent }

// String is empty for the default, so that help shows none.
func (c cacheSize) String() string {
	switch {
	case c.opts == nil:
		return ""
	case c.opts.NoCaches:
		return "off"
	default:
		return byteCount{&c.opts.CacheBytes}.String()
	}
}

// Set reads a size above 0, or off.
func (c cacheSize) Set(text string) error {
	if c.opts.NoCaches = text == "off"; c.opts.NoCaches {
		return nil
	}
	return byteCount{&c.opts.CacheBytes}.Set(text)
}

// Type names the kind of value in help.
func (c cacheSize) Type() string { return "size" }
