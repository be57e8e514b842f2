"""What the server that forks ranks imports last: all that they would import in their first step, as warm servers have it."""

import warm_start

warm_start.bring("torch")
