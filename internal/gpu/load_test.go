package gpu

import (
	"errors"
	"maps"
	"testing"
)

func TestHowBusyGPUsAreIsTheMeanOfAMinute(t *testing.T) {
	const a, b = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"
	m := NewMeter(New(Config{}))
	for i, text := range []string{a + ", 25\n" + b + ", 100\n", a + ", 50\n" + b + ", [N/A]\n", a + ", 75\n" + b + ", 7\n"} {
		m.take(busyOf([]byte(text), nil))
		if got := m.Loads(); len(got) > 0 {
			t.Errorf("after %d looks, which are less than a minute, the loads are %v", i+1, got)
		}
	}
	m.take(busyOf([]byte(a+", 50\n"+b+", 7\n"), nil))
	if got := m.Loads(); !maps.Equal(got, map[string]float64{a: 0.5}) {
		t.Errorf("got %v, want 0.5 of the one GPU, and nothing of the other, which was not read each time", got)
	}
	m.take(busyOf(nil, errors.New("nvidia-smi did not answer")))
	if got := m.Loads(); len(got) > 0 {
		t.Errorf("after a look that failed, the loads are %v", got)
	}
	for _, text := range []string{"", "a, 101\n", a + ", 101\n", a + ", -1\n", "x, 5\n", a + "\n", a + ", 1, 2\n", "\"", a + ", ERR!\n"} {
		if got := busyOf([]byte(text), nil); len(got) > 0 {
			t.Errorf("%q: got %v, want nothing", text, got)
		}
	}
}
