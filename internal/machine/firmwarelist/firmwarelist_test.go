package firmwarelist

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

const list = `
machines:
- {vendor: Dell*, product: PowerEdge R6*, bios: ["Dell Inc. 2.19.*"], bmc: ["7.*"]}
- {product: Blade, bios: ["v1/a*"]}
- {vendor: QEMU}
adapters:
- {type: MT4123, firmware: ["20.39.*", "20.40.1000"]}
`

func TestFirmwareIsComparedWithTheList(t *testing.T) {
	l, err := Parse([]byte(list))
	if err != nil {
		t.Fatal(err)
	}
	dell := func(bios, bmc string, hcas ...api.HCA) *api.Hardware {
		return &api.Hardware{Vendor: "Dell Inc.", Product: "PowerEdge R650", FirmwareVersion: bios, BMC: &api.BMC{Version: bmc}, HCAs: hcas}
	}
	const bios, bmc = "Dell Inc. 2.19.1 (2025-01-01)", "7.10"
	for name, tc := range map[string]struct {
		hw   *api.Hardware
		want string
	}{
		"all of it is on the list":         {dell(bios, bmc, api.HCA{Name: "mlx5_0", Type: "MT4123", Firmware: "20.39.2048"}), ""},
		"another BIOS":                     {dell("Dell Inc. 2.18.0", bmc), "its firmware is Dell Inc. 2.18.0, which is not on the firmware list (Dell Inc. 2.19.*)"},
		"an unknown BIOS":                  {dell("", bmc), "its firmware is of an unknown version"},
		"another BMC":                      {dell(bios, "6.0"), "its BMC has firmware 6.0"},
		"no BMC":                           {&api.Hardware{Vendor: "Dell Inc.", Product: "PowerEdge R640", FirmwareVersion: bios}, "its BMC has firmware of an unknown version"},
		"an adapter of another version":    {dell(bios, bmc, api.HCA{Name: "mlx5_0", Type: "MT4123", Firmware: "20.40.1001"}), "adapter mlx5_0 (MT4123) has firmware 20.40.1001"},
		"an adapter of another type":       {dell(bios, bmc, api.HCA{Name: "mlx5_0", Type: "MT4129", Firmware: "1"}), ""},
		"a product that is not listed":     {&api.Hardware{Vendor: "Dell Inc.", Product: "PowerEdge R750"}, `its product "Dell Inc. PowerEdge R750" is not on the firmware list`},
		"an entry that allows all":         {&api.Hardware{Vendor: "QEMU", FirmwareVersion: "x"}, ""},
		"a version with a slash":           {&api.Hardware{Product: "Blade", FirmwareVersion: "v1/a/b"}, ""},
		"nothing is known of the hardware": {nil, ""},
	} {
		if got := l.Problem(tc.hw); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if got := (*List)(nil).Problem(dell("x", "y")); got != "" {
		t.Errorf("without a list: %q", got)
	}
}

func TestAListThatMeansNothingIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"machines: []":                                "names neither machines nor adapters",
		"machines: [{product: '['}]":                  `machines[0]: "[" is no pattern`,
		"adapters: [{type: x}]":                       "adapters[0]: give its type",
		"adapters: [{type: x, firmware: ['[']}]":      `"[" is no pattern`,
		"machines: [{products: x}]":                   "unknown field",
		"machines: [{product: x, bios: [a], dmi: b}]": "unknown field",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
