"""gnmt: translation from English to German with a recurrent network."""
