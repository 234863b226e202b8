"""Which sample stands where in an epoch: functions of values, which open no file and know no process."""
