package api

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func TestQuantitiesAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]Bytes{
		"512MiB": 512 << 20, "2GiB": 2 << 30, "1.5GiB": 3 << 29, "1000MB": 1e9, "64KiB": 64 << 10, "1kB": 1000, "17": 17, "17B": 17,
		" 4 GiB ": 4 << 30, "0": 0, "1TiB": 1 << 40,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestWhatIsNoQuantityIsRefused(t *testing.T) {
	for _, text := range []string{"", "MiB", "512 mib", "512M", "-1", "-1GiB", "1e3x", "NaN", "NaNGiB", "Inf", "9999999999TiB", "1,5GiB"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", text, got)
		}
	}
}

func TestAQuantityWrittenIsReadBackAsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<61).Draw(t, "bytes"))
		data, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var back Bytes
		if err := json.Unmarshal(data, &back); err != nil || back != b {
			t.Fatalf("%d was written %s and read back as %d, %v", b, data, back, err)
		}
	})
}

func TestAPlainNumberInJSONIsBytes(t *testing.T) {
	var b Bytes
	if err := json.Unmarshal([]byte("4096"), &b); err != nil || b != 4096 {
		t.Errorf("got %d, %v; want 4096", b, err)
	}
}
