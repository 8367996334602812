package boot

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
)

// prefix begins the keys of the boot agent on the kernel's command line; the kernel ignores names with a dot that are no module's.
const prefix = "nearmetal."

// Encode is the arguments as words of the kernel's command line, in a fixed order; empty ones are left out.
func (a Arguments) Encode() string {
	var words []string
	add := func(key, value string) {
		if value != "" {
			words = append(words, prefix+key+"="+value)
		}
	}
	add("server", a.Server)
	add("pin", a.Pin)
	add("token", a.Token)
	add("mac", a.MAC)
	add("purpose", string(a.Purpose))
	add("manifest", string(a.Manifest))
	add("images", a.Images)
	if !a.Time.IsZero() {
		add("time", strconv.FormatInt(a.Time.Unix(), 10))
	}
	add("disk", a.Disk)
	return strings.Join(words, " ")
}

// ErrNotOurs: the command line has no argument of the boot agent; the machine was not started by Nearmetal's network boot.
var ErrNotOurs = errors.New("the kernel's command line has no nearmetal.server: this machine was not started by Nearmetal's network boot")

// ParseArguments reads the boot agent's arguments from a kernel's whole command line. The last of several equal keys counts, as for the
// kernel itself; keys it does not know are ignored, so that an older boot agent starts under a newer server.
func ParseArguments(cmdline string) (Arguments, error) {
	values := map[string]string{}
	for word := range strings.FieldsSeq(cmdline) {
		if key, value, ok := strings.Cut(strings.TrimPrefix(word, prefix), "="); ok && strings.HasPrefix(word, prefix) {
			values[key] = value
		}
	}
	if values["server"] == "" {
		return Arguments{}, ErrNotOurs
	}
	a := Arguments{
		Server: values["server"], Pin: values["pin"], Token: values["token"], MAC: strings.ToLower(values["mac"]),
		Purpose: api.BootPurpose(values["purpose"]), Manifest: image.Digest(values["manifest"]), Images: values["images"], Disk: values["disk"],
	}
	if text := values["time"]; text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds < 0 {
			return Arguments{}, argumentError("time", text, "expected the seconds since 1970")
		}
		a.Time = time.Unix(seconds, 0)
	}
	return a, a.check()
}

// check tells which argument can't be what a server wrote.
func (a Arguments) check() error {
	if host, port, err := net.SplitHostPort(a.Server); err != nil || host == "" || port == "" {
		return argumentError("server", a.Server, "expected HOST:PORT")
	}
	if a.Pin == "" || a.Token == "" {
		return errors.New("the kernel's command line lacks nearmetal.pin or nearmetal.token")
	}
	if mac, err := net.ParseMAC(a.MAC); err != nil || len(mac) != 6 {
		return argumentError("mac", a.MAC, "expected a MAC address")
	}
	switch a.Purpose {
	case api.BootEnroll, api.BootInspect, api.BootEnvironment, api.BootMember, api.BootClean:
	default:
		return argumentError("purpose", string(a.Purpose), "expected enroll, inspect, environment, member or clean")
	}
	if err := a.Manifest.Check(); err != nil {
		return argumentError("manifest", string(a.Manifest), err.Error())
	}
	if u, err := url.Parse(a.Images); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || !strings.HasSuffix(a.Images, "/") {
		return argumentError("images", a.Images, "expected an HTTP URL that ends with /")
	}
	if a.Disk != "" && !strings.HasPrefix(a.Disk, "/dev/") {
		return argumentError("disk", a.Disk, "expected a path below /dev")
	}
	return nil
}

func argumentError(key, value, what string) error {
	return fmt.Errorf("the kernel's command line has %s%s=%q: %s", prefix, key, value, what)
}
