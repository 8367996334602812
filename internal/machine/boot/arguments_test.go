package boot

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
)

func arguments() Arguments {
	return Arguments{
		Server: "10.9.0.1:7443", Pin: "pIn_-", Token: "t0ken", MAC: "52:54:00:00:00:01", Purpose: api.BootEnvironment,
		Manifest: image.DigestOf([]byte("manifest")), Images: "http://10.9.0.1:7480/images/", Time: time.Unix(1790000000, 0), Disk: "/dev/vda",
	}
}

func TestArgumentsSurviveTheCommandLine(t *testing.T) {
	want := arguments()
	line := "BOOT_IMAGE=vmlinuz console=ttyS0 " + want.Encode() + " quiet nearmetal.later=1\n"
	got, err := ParseArguments(line)
	if err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	golden := "nearmetal.server=10.9.0.1:7443 nearmetal.pin=pIn_- nearmetal.token=t0ken nearmetal.mac=52:54:00:00:00:01 nearmetal.purpose=environment " +
		"nearmetal.manifest=" + string(want.Manifest) + " nearmetal.images=http://10.9.0.1:7480/images/ nearmetal.time=1790000000 nearmetal.disk=/dev/vda"
	if want.Encode() != golden {
		t.Errorf("Encode:\n%s\nwant\n%s", want.Encode(), golden)
	}
}

func TestBadArgumentsAreNamed(t *testing.T) {
	for _, c := range []struct {
		change func(*Arguments)
		want   string
	}{
		{func(a *Arguments) { a.Server = "10.9.0.1" }, "nearmetal.server"},
		{func(a *Arguments) { a.Pin = "" }, "nearmetal.pin"},
		{func(a *Arguments) { a.Token = "" }, "nearmetal.token"},
		{func(a *Arguments) { a.MAC = "52:54" }, "nearmetal.mac"},
		{func(a *Arguments) { a.Purpose = "play" }, "nearmetal.purpose"},
		{func(a *Arguments) { a.Manifest = "sha256:00" }, "nearmetal.manifest"},
		{func(a *Arguments) { a.Images = "ftp://10.9.0.1/" }, "nearmetal.images"},
		{func(a *Arguments) { a.Images = "http://10.9.0.1/images" }, "nearmetal.images"},
		{func(a *Arguments) { a.Disk = "vda" }, "nearmetal.disk"},
	} {
		a := arguments()
		c.change(&a)
		if _, err := ParseArguments(a.Encode()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that names %s", a.Encode(), err, c.want)
		}
	}
	if _, err := ParseArguments("console=ttyS0 root=/dev/vda1"); !errors.Is(err, ErrNotOurs) {
		t.Errorf("a foreign command line: got %v, want ErrNotOurs", err)
	}
}

func FuzzParseArguments(f *testing.F) {
	f.Add(arguments().Encode())
	f.Add("nearmetal.server=[::1]:1 nearmetal.time=-1")
	f.Fuzz(func(t *testing.T, line string) {
		a, err := ParseArguments(line)
		if err != nil {
			return
		}
		if again, err := ParseArguments(a.Encode()); err != nil || again != a {
			t.Errorf("%q was read as %+v; written and read again it is %+v, %v", line, a, again, err)
		}
	})
}
