package build

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/image"
)

func TestALayersKernelArgumentsFollowThoseOfItsBase(t *testing.T) {
	base := &image.Metal{KernelVersion: "6.1", Arguments: "console=ttyS0"}
	for _, test := range []struct {
		name          string
		base          *image.Metal
		more          string
		want, problem string
	}{
		{"a layer without arguments keeps the base's", base, "", "console=ttyS0", ""},
		{"a layer's arguments come last", base, "iommu=pt", "console=ttyS0 iommu=pt", ""},
		{"a base without arguments gets the layer's alone", &image.Metal{}, "iommu=pt", "iommu=pt", ""},
		{"a base without a kernel is refused", nil, "iommu=pt", "", "has no kernel"},
		{"arguments that are too long together are refused", base, strings.Repeat("x", 1020), "", "at most 1024 fit"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := addArguments(test.base, test.more)
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) {
					t.Errorf("error %v, want %q in it", err, test.problem)
				}
				return
			}
			if err != nil || got.Arguments != test.want {
				t.Errorf("arguments %q and error %v, want %q", got.Arguments, err, test.want)
			}
		})
	}
	if base.Arguments != "console=ttyS0" {
		t.Errorf("the base's own arguments became %q", base.Arguments)
	}
}
