package redfish

import (
	"errors"
	"net/http"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

func TestThatALoginIsRefusedIsSaidOnceWithTheBMCsOwnWords(t *testing.T) {
	s, err := New(power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: "http://10.0.0.7"}, Credentials: power.Credentials{User: "operator"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for message, want := range map[string]string{
		"The account is locked": `Redfish at 10.0.0.7: the BMC refused the user or the password (user "operator"): it answered "The account is locked"`,
		"":                      `Redfish at 10.0.0.7: the BMC refused the user or the password (user "operator"): it answered "Unauthorized"`,
	} {
		err := s.explain(&statusError{method: http.MethodPost, path: "/redfish/v1/SessionService/Sessions", code: http.StatusUnauthorized, message: message})
		if err.Error() != want || !errors.Is(err, power.ErrCredentials) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
