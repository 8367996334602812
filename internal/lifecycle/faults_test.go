package lifecycle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// faulty are errors of one memory controller and one disk.
func faulty(boot string, corrected, uncorrected, media int64, failing string) api.HardwareFaults {
	return api.HardwareFaults{
		Boot: boot, Memory: []api.MemoryFaults{{Controller: "mc0", Corrected: corrected, Uncorrected: uncorrected}},
		Disks: []api.DiskFaults{{Name: "nvme0n1", Serial: "s1", MediaErrors: media, Failing: failing}},
	}
}

// tell goes through looks at a node, and returns what was told at each.
func tell(tenant bool, looks ...api.HardwareFaults) (told []string) {
	var record *api.FaultRecord
	for _, seen := range looks {
		next, messages := lifecycle.PlanFaults(lifecycle.FaultInput{Told: record, Seen: seen, Tenant: tenant, Now: time.Unix(1, 0)})
		if next != nil {
			record = next
		}
		told = append(told, strings.Join(messages, "; "))
	}
	return told
}

func TestARiseOfHardwareErrorsIsToldOnce(t *testing.T) {
	for name, c := range map[string]struct {
		looks []api.HardwareFaults
		want  []string
	}{
		"a healthy node": {[]api.HardwareFaults{faulty("b", 0, 0, 3, ""), faulty("b", 0, 0, 3, "")}, []string{"", ""}},
		"an uncorrectable error": {
			[]api.HardwareFaults{faulty("b", 0, 0, 0, ""), faulty("b", 0, 1, 0, ""), faulty("b", 0, 1, 0, ""), faulty("b", 0, 2, 0, "")},
			[]string{
				"", "memory controller mc0 counted 1 uncorrectable errors since its boot, 1 of them new; replace the module", "",
				"memory controller mc0 counted 2 uncorrectable errors since its boot, 1 of them new; replace the module",
			},
		},
		"corrected errors that go on": {
			[]api.HardwareFaults{faulty("b", 1, 0, 0, ""), faulty("b", 2, 0, 0, ""), faulty("b", 3, 0, 0, ""), faulty("b", 4, 0, 0, "")},
			[]string{
				"memory controller mc0 corrected 1 errors since its boot", "memory controller mc0 corrected 2 errors since its boot", "",
				"memory controller mc0 corrected 4 errors since its boot",
			},
		},
		"counters that begin again": {
			[]api.HardwareFaults{faulty("b", 0, 5, 0, ""), faulty("c", 0, 1, 0, "")},
			[]string{
				"memory controller mc0 counted 5 uncorrectable errors since its boot, 5 of them new; replace the module",
				"memory controller mc0 counted 1 uncorrectable errors since its boot, 1 of them new; replace the module",
			},
		},
		"a disk": {
			[]api.HardwareFaults{faulty("b", 0, 0, 7, ""), faulty("b", 0, 0, 9, "it has become read-only"), faulty("c", 0, 0, 9, "it has become read-only")},
			[]string{"", "disk nvme0n1 (, serial s1): it has become read-only; disk nvme0n1 (, serial s1) counted 9 errors of its medium, 2 of them new", ""},
		},
	} {
		if got := tell(false, c.looks...); !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

func TestATenantWhoCountsErrorsMakesFewEvents(t *testing.T) {
	var looks []api.HardwareFaults
	for n := range int64(1000) {
		looks = append(looks, faulty("b", n, n, n, ""))
	}
	told := 0
	for _, text := range tell(true, looks...) {
		if text == "" {
			continue
		}
		if told++; !strings.HasPrefix(text, "the machine's users report: ") {
			t.Errorf("%q does not say whose word it is", text)
		}
	}
	if told < 5 || told > 25 {
		t.Errorf("1000 rising reports made %d events, want about 10", told)
	}
}
