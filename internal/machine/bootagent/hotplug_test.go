package bootagent

import "testing"

func TestOnlyAProcessorThatIsAddedIsBroughtOnline(t *testing.T) {
	for name, c := range map[string]struct{ event, want string }{
		"a processor that was added":   {"add@/devices/system/cpu/cpu12\x00ACTION=add\x00DEVPATH=/devices/system/cpu/cpu12\x00SUBSYSTEM=cpu\x00", "cpu12"},
		"a processor that went online": {"online@/devices/system/cpu/cpu12\x00ACTION=online\x00DEVPATH=/devices/system/cpu/cpu12\x00SUBSYSTEM=cpu\x00", ""},
		"a processor that was removed": {"remove@/devices/system/cpu/cpu12\x00ACTION=remove\x00DEVPATH=/devices/system/cpu/cpu12\x00SUBSYSTEM=cpu\x00", ""},
		"a device of a processor":      {"add@/devices/system/cpu/cpu12/x\x00ACTION=add\x00DEVPATH=/devices/system/cpu/cpu12/x\x00SUBSYSTEM=cpu\x00", ""},
		"another device":               {"add@/devices/system/memory/memory9\x00ACTION=add\x00DEVPATH=/devices/system/memory/memory9\x00SUBSYSTEM=memory\x00", ""},
		"no event":                     {"", ""},
	} {
		if got := newProcessor([]byte(c.event)); got != c.want {
			t.Errorf("%s: %q is brought online, want %q", name, got, c.want)
		}
	}
}
