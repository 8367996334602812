package driver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver"
)

func TestVolumesThatCantBeMountedSafelyAreRefused(t *testing.T) {
	good := driver.Mount{Source: "/state/volumes/v/c", Path: "/volumes/data"}
	for name, tc := range map[string]struct {
		mounts []driver.Mount
		want   string
	}{
		"a relative directory":    {[]driver.Mount{{Source: "v", Path: "/v"}}, `the directory "v" of a volume must be a clean absolute path`},
		"a relative path":         {[]driver.Mount{{Source: "/v", Path: "v"}}, `not "v"`},
		"a path with dots":        {[]driver.Mount{{Source: "/v", Path: "/volumes/../etc"}}, `not "/volumes/../etc"`},
		"the root":                {[]driver.Mount{{Source: "/v", Path: "/"}}, `not "/"`},
		"two volumes at one path": {[]driver.Mount{good, good}, "two volumes have the path /volumes/data"},
	} {
		if err := driver.CheckMounts(tc.mounts); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tc.want)
		}
	}
	if err := driver.CheckMounts([]driver.Mount{good}); err != nil {
		t.Errorf("a good volume is refused: %v", err)
	}
}
