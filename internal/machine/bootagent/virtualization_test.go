package bootagent

import "testing"

func TestTheModuleThatVirtualizesProcessorsFollowsFromTheirFlags(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nflags\t\t: fpu vmx sse2\n": "kvm_intel",
		"flags: svm\n": "kvm_amd",
		"flags\t\t: fpu sse2 avmx\nvmx flags\t: vnmi svm\n": "",
		"": "",
	} {
		if got := virtualizer([]byte(text)); got != want {
			t.Errorf("processors with %q: got %q, want %q", text, got, want)
		}
	}
}
