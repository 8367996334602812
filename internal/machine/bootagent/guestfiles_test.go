package bootagent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

func TestOnlyAGuestsCommandLineMakesAGuest(t *testing.T) {
	for line, want := range map[string]struct {
		formats []image.RootFormat
		guest   bool
	}{
		"console=ttyS0 nearmetal.guest=erofs,squashfs panic=-1":  {[]image.RootFormat{image.EROFS, image.SquashFS}, true},
		"nearmetal.server=h:1 nearmetal.guests=erofs":            {nil, false},
		"BOOT_IMAGE=/vmlinuz root=/dev/vda1 x=nearmetal.guest=e": {nil, false},
	} {
		formats, isGuest := guestFormats(line)
		if !cmp.Equal(formats, want.formats) || isGuest != want.guest {
			t.Errorf("%q: got %v, %v", line, formats, isGuest)
		}
	}
	for _, bad := range [][]image.RootFormat{nil, {"ext4"}, {image.EROFS, ""}, make([]image.RootFormat, guestlink.MaxRoots+1)} {
		if allFormats(bad) {
			t.Errorf("%v are taken for file systems of roots", bad)
		}
	}
	if !allFormats([]image.RootFormat{image.EROFS, image.SquashFS}) {
		t.Error("EROFS and SquashFS are refused")
	}
}
